"""Data, model and run have one vocabulary in one casing, or are refused. CPU, seconds."""

import dataclasses
import json
from pathlib import Path

import pytest

from mlperf_bert.checkpoints import one_vocabulary
from mlperf_bert.checkpoints.one_vocabulary import Known, require_one
from mlperf_bert.data import parts, vocabulary
from mlperf_bert.data.evaluation_shard import PickConfig, pick
from mlperf_bert.messages import Problems
from mlperf_bert.training import checks, offline
from mlperf_bert.training.inspection import inspect_closely
from mlperf_bert.training.output import Origin, OutputDirectory, read_record
from tests.training.configurations import write_records

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "a"]
OTHER = [*WORDS[:6], "a", "##s"]


def write_vocabulary(folder: Path, words: list[str], *, lower: bool | None = None) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_bytes(vocabulary.as_text(words))
    if lower is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    return vocabulary.md5_of(words)


def record_data(*files: Path, words: list[str] = WORDS, lower: bool = True) -> None:
    parameters = {"vocab_md5": vocabulary.md5_of(words), "do_lower_case": lower}
    data_set = parts.DataSet(
        parameters=parameters, inputs={}, files={each.name: parts.describe(each) for each in files}
    )
    parts.write(files[0].parent, f"of {lower}", data_set)


def known(*folders: Path, files: tuple[Path, ...] = ()) -> list[Known]:
    return one_vocabulary.known_of(data=parts.of_files(map(str, files)), folders=folders)


def test_records_vocabularies_and_runs_are_known(tmp_path):
    md5 = write_vocabulary(tmp_path, WORDS, lower=False)
    (tmp_path / "run.json").write_text(json.dumps({"vocabulary": {"vocab_md5": "x"}}))
    (tmp_path / "part").touch()
    (tmp_path / "unknown").touch()
    record_data(tmp_path / "part")
    data, model, run = known(tmp_path, tmp_path, files=(tmp_path / "part", tmp_path / "unknown"))
    assert data[1] == {"vocab_md5": md5, "do_lower_case": "True"}
    assert model[1] == {"vocab_md5": md5, "do_lower_case": "False"}
    assert run[1] == {"vocab_md5": "x"}
    with pytest.raises(Problems) as error:
        require_one([data, model, run])
    words, casing = error.value.problems
    assert words == (
        f"different vocabularies, by MD5: {md5} of the data in {tmp_path}, {tmp_path}/vocab.txt; x "
        f"of the run in {tmp_path}; give files that belong together, or make data again with the "
        "vocab.txt of the model"
    )
    assert casing.startswith(
        f"different casings, by --do_lower_case: True of the data in {tmp_path}"
    )


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("stated", [None, False, True])
def test_the_casing_that_a_command_is_given_counts_before_the_files(tmp_path, stated, lower):
    """So fine-tuning with --nodo_lower_case of a lower-cased run is refused."""
    write_vocabulary(tmp_path, WORDS, lower=stated)
    _, said = one_vocabulary.in_file(str(tmp_path / "vocab.txt"), do_lower_case=lower)
    assert said["do_lower_case"] == str(lower)


@pytest.mark.parametrize("damaged", ["", [], {"vocab_md5": None}, {"vocab_md5": ["x"]}])
def test_what_is_not_known_contradicts_nothing(tmp_path, damaged):
    (tmp_path / "run.json").write_text(json.dumps({"vocabulary": damaged}))
    md5 = write_vocabulary(tmp_path / "model", WORDS)
    found = known(tmp_path, tmp_path / "model")
    one = require_one(each for each in found if each[1] != {"vocab_md5": "['x']"})
    assert one == {"vocab_md5": md5}
    assert require_one([]) == {}


@pytest.fixture
def run(config, tmp_path):
    """A run whose training data, evaluation data and model lie in folders of their own."""
    write_records(tmp_path, config)
    names = {"input_file": "part-0", "eval_input_file": "eval"}
    for flag, name in names.items():
        folder = tmp_path / flag
        folder.mkdir()
        (tmp_path / name).rename(folder / name)
        names[flag] = str(folder / name)
        record_data(folder / name)
    return dataclasses.replace(config, **names)


def errors(config) -> list[str]:
    found = inspect_closely(config, measure_initial_accuracy=False).findings.errors
    assert checks.inspect(config).findings.errors == found
    return found


def test_a_run_of_one_vocabulary_records_it(run, tmp_path):
    md5 = write_vocabulary(tmp_path, WORDS, lower=True)
    assert errors(run) == []
    output = OutputDirectory.of(run)
    output.path.mkdir()
    Origin(checks.inspect(run), output, seed=1).begin()
    assert read_record(output.path).vocabulary == {"vocab_md5": md5, "do_lower_case": "True"}
    # And what is added to it later must fit, also where no other record is left.
    (tmp_path / "input_file" / parts.NAME).unlink()
    (tmp_path / "vocab.txt").unlink()
    record_data(Path(run.eval_input_file), words=OTHER)
    [problem] = checks.inspect(run, has_checkpoint=True).findings.errors
    assert f" of the run in {output.path}; give files" in problem
    record = json.loads((output.path / "run.json").read_text())
    (output.path / "run.json").write_text(json.dumps(record | {"status": "aborted"}))
    with pytest.raises(ValueError, match="different vocabularies, by MD5"):
        offline.evaluate_checkpoints(run)


@pytest.mark.parametrize("flag", ["input_file", "eval_input_file"])
def test_data_of_another_vocabulary_or_casing_are_refused(run, tmp_path, flag):
    write_vocabulary(tmp_path, WORDS, lower=True)
    record_data(Path(getattr(run, flag)), words=OTHER)
    [problem] = errors(run)
    assert f"{vocabulary.md5_of(OTHER)} of the data in {tmp_path / flag}" in problem
    record_data(Path(getattr(run, flag)), lower=False)
    of_casing = [each for each in errors(run) if "casings" in each]
    assert f"False of the data in {tmp_path / flag}" in of_casing[0]


def test_the_vocabulary_beside_the_checkpoint_counts_too(run, tmp_path):
    write_vocabulary(tmp_path / "weights", OTHER)
    run = dataclasses.replace(run, init_checkpoint=str(tmp_path / "weights" / "model.ckpt-0"))
    [problem] = checks.inspect(run, has_checkpoint=True).findings.errors
    assert f"{vocabulary.md5_of(OTHER)} of {tmp_path}/weights/vocab.txt; give" in problem


def test_what_is_picked_is_by_the_vocabulary_of_its_source(run, tmp_path):
    picked = tmp_path / "picked" / "eval_10k"
    picked.parent.mkdir()
    lengths = dataclasses.asdict(run.shape)
    source = run.eval_input_file
    pick(PickConfig(input_tfrecord=source, output_tfrecord=str(picked), num_examples_to_pick=1,
                    **lengths))  # fmt: skip
    [found] = known(files=(picked,))
    assert found[1] == {"vocab_md5": vocabulary.md5_of(WORDS), "do_lower_case": "True"}
