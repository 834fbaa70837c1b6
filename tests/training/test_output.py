"""One directory, one run, one process."""

import json

import pytest

from mlperf_bert.mlperf.log_reader import logs_of_run
from mlperf_bert.training.output import OutputDirectory

PARAMETERS = {"learning_rate": 0.1}
RECORD = {"status": "running", "seed": 1, "parameters": PARAMETERS}


def directory(path) -> OutputDirectory:
    return OutputDirectory(str(path), PARAMETERS)


def test_a_directory_is_held_until_it_is_released(tmp_path):
    first, second = directory(tmp_path / "run"), directory(tmp_path / "run")
    published = []
    first._folder.publish = lambda: published.append((first.path / "run.json").exists())
    first.claim()
    first.record(status="running", seed=1)
    assert published == [True]
    for look in (second.claim, second.require_available):
        with pytest.raises(ValueError, match="another process trains into it; wait for it, or"):
            look()
    first.release()
    second.claim()
    assert second.earlier_record and second.earlier_record.seed == 1
    for status in ("aborted", "success"):
        second.record(status=status, seed=1)
        second.release()
        with pytest.raises(ValueError, match=rf"holds a finished run \(status {status}\)"):
            first.claim()
    first._require_usable = lambda: None
    first.claim()  # the refusal did not keep the lock
    first.release()


def test_what_was_not_used_leaves_nothing(tmp_path):
    output = directory(tmp_path / "deep" / "run")
    output.require_available()
    assert output.beginning(0, latest_step=None)["seed"] == 0  # the user's, not a drawn one
    assert list(tmp_path.iterdir()) == []
    output.claim()
    assert (tmp_path / "deep" / "run").is_dir()
    output.release()
    assert list(tmp_path.iterdir()) == []


def damaged(text):
    return lambda path: (path / "run.json").write_text(text)


UNUSABLE = {
    **{
        f"a foreign {name}": (
            lambda path, name=name: (path / name).touch(),
            f"holds files of another run, such as {name}; choose a new or empty directory",
        )
        for name in (
            "model.ckpt-7.index checkpoint metrics.jsonl bert.log bert.resumed-1.log "
            "bert.offline.log eval_results.jsonl eval_results.txt"
        ).split()
    },
    "other parameters": (
        damaged(json.dumps(RECORD | {"parameters": {"learning_rate": 0.2}})),
        r"holds another run \(learning_rate: 0.2 there, 0.1 here\)",
    ),
    "a parameter that is no more": (
        damaged(json.dumps(RECORD | {"parameters": PARAMETERS | {"momentum": 0.9}})),
        r"holds another run \(momentum: 0\.9 there, None here\)",
    ),
    "a key is missing": (damaged('{"status": "running"}'), "run.json: damaged"),
    "a key too many": (damaged(json.dumps(RECORD | {"x": 1})), "run.json: damaged"),
    "a status that is none": (damaged(json.dumps(RECORD | {"status": 5})), "run.json: damaged"),
    "a seed that is none": (damaged(json.dumps(RECORD | {"seed": "1"})), "run.json: damaged"),
    **{
        f"{name} that are {value!r}": (
            damaged(json.dumps(RECORD | {name: value})),
            rf"run\.json: damaged \({name} must be a dict",
        )
        for name, value in (
            ("parameters", None),
            ("inputs", [1]),
            ("made_with", [1]),
        )
    },
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_directory_is_refused_in_one_line_and_kept(tmp_path, case):
    spoil, message = UNUSABLE[case]
    spoil(tmp_path)
    before = sorted(tmp_path.iterdir())
    for refuse in (directory(tmp_path).claim, directory(tmp_path).require_available):
        with pytest.raises(ValueError, match=message) as error:
            refuse()
        assert len(str(error.value).splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "file").touch()
    output = directory(tmp_path / "file")
    for refuse in (output.claim, output.require_available):
        with pytest.raises(ValueError, match="file: is a file, not a folder; choose another"):
            refuse()


def test_a_directory_that_cannot_be_made_is_refused():
    with pytest.raises(ValueError, match=r"=/proc/run: cannot be written to .* choose another"):
        directory("/proc/run").claim()


def test_logs_are_numbered_in_order(tmp_path):
    output, names = directory(tmp_path), []
    for _ in range(12):
        names.append(output.log_path().name)
        output.log_path().touch()
    (tmp_path / "bert.resumed-x.log").touch()
    assert names[:3] == ["bert.log", "bert.resumed-1.log", "bert.resumed-2.log"]
    assert [log.name for log in logs_of_run(tmp_path)] == names
