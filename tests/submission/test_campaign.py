"""Campaigns over a stand-in for run_pretraining.py that writes its logs at once.

The official tools are the real ones; demo/campaign.py is the same with real trainings.

Long because the stand-in for a training serves all of its tests.
"""

import dataclasses
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path

import pytest

from demo.campaign import REFERENCE_POINTS
from mlperf_bert import signals
from mlperf_bert.data import software
from mlperf_bert.files.locks import DirectoryLock
from mlperf_bert.mlperf.log_reader import read_run
from mlperf_bert.submission import campaign, folder, system
from mlperf_bert.submission.campaign import Campaign, run_campaign
from mlperf_bert.submission.compliance import Verdict
from mlperf_bert.submission.official import RcpVerdict, ToolVerdict
from mlperf_bert.submission.verdict import SystemVerdict
from tests.fixtures import REPOSITORY
from tests.helpers import programs, waiting
from tests.mlperf.example_log import write_log


def stand_in(here: Path, flags: Sequence[str]) -> int:
    """One training or evaluation, which writes log and record at once; returns its exit code.

    What happens to run N is in `here`/plan.json: "exit 75" (once), "refuses", "fails",
    "unevaluated", "stopped" (in the evaluation). The names of the runs are noted in `here`/calls.
    """
    given = dict(flag.lstrip("-").split("=", 1) for flag in flags if "=" in flag)
    folder = Path(given["output_dir"])
    with (here / "calls").open("a") as calls:
        calls.write(f"{folder.name}\n")
    plan = json.loads((here / "plan.json").read_text())
    word, _, value = plan.pop(folder.name, "").partition(" ")
    if word == "refuses":
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    if word == "exit":
        (here / "plan.json").write_text(json.dumps(plan))
        write_log(folder / "bert.log", [0.5])
        (folder / "run.json").write_text('{"status": "running"}')
        return int(value)
    seed = 100 + int(folder.name.partition(".")[0])
    accuracies = [0.5] * 16 + [0.5 if word == "fails" else 0.73]
    if "--nodo_train" in flags:
        if word in ("unevaluated", "stopped"):
            return 1 if word == "unevaluated" else 75
        write_log(folder / "bert.offline.log", accuracies, seed=seed)
        return 0
    write_log(folder / "bert.log", accuracies, seed=seed)
    status = "aborted" if word == "fails" else "success"
    (folder / "run.json").write_text(json.dumps({"status": status}))
    return 0


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Returns a function that makes a campaign with a plan of what happens to its runs.

    Its runs are calls in this process.
    """
    monkeypatch.setattr(campaign, "_call", lambda words: stand_in(tmp_path, words[2:]))

    def make(plan=None, *, num_runs=10, **changes):
        (tmp_path / "plan.json").write_text(json.dumps(plan or {}))
        given = {"org": "example", "system": "1xExample", "status": "onprem", "flags": ("--x=1",)}
        command = (sys.executable, "stand-in")
        folder = tmp_path / "campaign"
        return Campaign(**given | changes, folder=folder, num_runs=num_runs, command=command)

    return make


def run(made, **changes):
    given = {"ruleset": "5.0.0", "custom_rcps": None, "overrides": {}}
    return run_campaign(made, **given | changes)


def train(made):
    with campaign.claimed(made):
        return campaign.train_runs(made)


def claim(made):
    with campaign.claimed(made):
        pass


def test_a_campaign_hands_its_logs_and_its_options_on(make, monkeypatch):
    asked: list[tuple] = []
    answer = lambda *given, **options: asked.append((*given, options)) or "verdict"  # noqa: E731
    monkeypatch.setattr(campaign, "judge_submission", answer)
    made = make(num_runs=2)
    given = {"ruleset": "4.0.0", "custom_rcps": REFERENCE_POINTS, "overrides": {"cooling": "air"}}
    assert run(made, **given) == "verdict"
    assert asked == [(made.org_dir, "1xExample", "4.0.0", {"custom_rcps": REFERENCE_POINTS})]
    logs = sorted((made.org_dir / "results" / "1xExample" / "bert").iterdir())
    assert [log.name for log in logs] == ["result_0.txt", "result_1.txt"]
    for number, log in enumerate(logs):
        assert log.read_bytes() == (made.runs_dir / str(number) / "bert.log").read_bytes()
    described = json.loads((made.org_dir / "systems" / "1xExample.json").read_text())
    assert described["cooling"] == "air" and described["status"] == "Available on-premise"
    (logs[0].parent / "scaling.json").touch()  # of a tool; a submission is written again whole
    run(made, **given)
    assert sorted(logs[0].parent.iterdir()) == logs


@pytest.mark.gate
def test_ten_runs_become_a_submission_that_all_tools_accept(make):
    verdict = run(make(), overrides={"cooling": "air"})
    assert verdict.passed, "\n".join(verdict.lines())
    assert [tool.passed for tool in verdict.tools] == [True] * 4
    assert verdict.official_minutes == pytest.approx(verdict.olympic_minutes, abs=1e-9)
    assert verdict.lines()[-1] == "PASSED under ruleset 5.0.0"
    org = make().org_dir
    found = {str(path.relative_to(org)) for path in org.rglob("*") if path.is_file()}
    scripts = ("README.md", "setup.sh", "init_datasets.sh", "run_and_time.sh")
    assert {
        *(f"results/1xExample/bert/result_{number}.txt" for number in range(10)),
        "systems/1xExample.json",
        *(f"benchmarks/bert/1xExample/{name}" for name in ("1xExample_mlperf_bert.json", *scripts)),
        "benchmarks/bert/implementations/mlperf_bert/mlperf_bert/training/loop.py",
    } <= found
    description = json.loads((org / "systems" / "1xExample.json").read_text())
    assert (description["division"], description["cooling"]) == ("closed", "air")
    assert description["status"] == "Available on-premise"
    assert int(description["host_processor_vcpu_count"]) >= 1


def test_processors_are_described_by_lscpu_and_what_it_does_not_know_is_not(monkeypatch):
    said = ["Socket(s):  2", "Core(s) per socket: 12", "CPU max MHz:  3900.6", "Model name: -"]
    said += ["L2 cache:  24 MiB (24 instances)", "L3 cache: -"]
    monkeypatch.setattr(software, "printed_by", lambda *words: "\n".join(said))
    monkeypatch.setattr(os, "cpu_count", lambda: 48)
    assert system._processors() == {
        "host_processors_per_node": "2",
        "host_processor_model_name": platform.machine(),
        "host_processor_core_count": "12",
        "host_processor_vcpu_count": "48",
        "host_processor_frequency": "3901 MHz",
        "host_processor_caches": "L2 cache 24 MiB (24 instances)",
    }
    monkeypatch.setattr(software, "printed_by", lambda *words: "")
    one, model, cores, virtual, *others = system._processors().values()
    assert (one, model, cores, virtual) == ("1", platform.machine(), "48", "48")
    assert others == ["", ""]


@pytest.mark.parametrize("code", [75, -9, 128 + 9, 128 + 15])  # those above 128: in a container
def test_an_interrupted_campaign_goes_on_without_repeating_runs(make, tmp_path, capfd, code):
    made = make({"3": f"exit {code}"}, num_runs=5)
    with pytest.raises(campaign.Interrupted, match="run 3 was stopped; the same command resumes"):
        train(made)
    runs = train(made)
    assert [result.seeds for result in runs] == [(100 + number,) for number in range(5)]
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "2", "3", "3.repeat-1", "4"]
    assert campaign.interrupted_runs(made) == ["3: cut off, run again"]
    assert f"$ {shlex.join(made.command)} --x=1 --drop_caches" in capfd.readouterr().out


@pytest.mark.parametrize("code", [1, 125, 255])  # 125: of docker; 255: of ssh and srun
def test_a_command_that_fails_by_itself_is_not_taken_for_an_interrupted_one(make, code):
    with pytest.raises(ValueError, match=f"run 1 ended with exit code {code} and left no finished"):
        train(make({"1": f"exit {code}"}, num_runs=2))


@pytest.mark.parametrize("number", signals.SIGNALS)
@pytest.mark.parametrize("code", [75, 0])  # 0: the run had ended by itself
def test_a_signal_is_handed_on_and_the_run_is_waited_for(tmp_path, number, code):
    ready = tmp_path / "ready"
    child = f"""
import pathlib, signal, sys, time
ready = pathlib.Path({str(ready)!r})

def end(number, frame):
    ready.write_text(str(number))
    sys.exit({code})

for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
ready.touch()
for _ in range(600):
    time.sleep(0.1)  # a signal just before one long sleep would wait for its end
sys.exit("no signal came")
"""

    def interrupt():
        waiting.until(ready.exists)
        os.kill(os.getpid(), number)

    def handler(*_) -> None:
        pytest.fail("the signal was not for the command")

    before = signal.signal(number, handler)  # under nohup SIGHUP is ignored
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        assert campaign._call([sys.executable, "-c", child]) == campaign.EXIT_TRY_AGAIN
        assert signal.getsignal(number) is handler
        # A command of another kind, such as an engine, may know SIGTERM alone.
        handed_on = signal.SIGINT if number == signal.SIGINT else signal.SIGTERM
        assert int(ready.read_text()) == handed_on
    finally:
        signal.signal(number, before)


def test_a_signal_that_comes_before_the_run_is_not_lost(monkeypatch):
    class Slow(subprocess.Popen):
        def __init__(self, *arguments, **options):
            signal.raise_signal(signal.SIGTERM)
            super().__init__(*arguments, **options)

    # A terminal's Ctrl-C comes to it once, from here.
    leads = "import os, sys; sys.exit(os.getsid(0) == os.getpid())"
    assert campaign._call([sys.executable, "-c", leads]) == 1
    monkeypatch.setattr(campaign.subprocess, "Popen", Slow)
    assert campaign._call(["sleep", "60"]) == -signal.SIGTERM


def test_a_run_that_outlives_its_campaign_keeps_its_folder(make):
    made = make({"1": "exit 75"}, num_runs=2)
    with pytest.raises(campaign.Interrupted):
        train(made)
    lock = DirectoryLock(made.runs_dir / "1")
    assert lock.acquire()
    with pytest.raises(ValueError, match="runs/1: run 1 is still training; stop it, or wait"):
        train(made)
    lock.release()
    assert len(train(made)) == 2


def test_a_folder_that_was_made_for_a_run_that_was_refused_is_taken(make, tmp_path):
    """The launcher of containers makes it; nothing was cut off there."""
    made = make({"0": "refuses"}, num_runs=1)
    with pytest.raises(ValueError, match="run 0 ended with exit code 1 and left no finished"):
        train(made)
    (made.runs_dir / "0").mkdir()
    assert len(train(make(num_runs=1))) == 1
    assert [path.name for path in made.runs_dir.iterdir()] == ["0"]


def test_flags_in_a_file_are_the_runs_too(make, tmp_path, monkeypatch):
    preset = tmp_path / "own.flags"
    preset.write_text(f"# of all runs\n--flagfile={preset}\n--do_train\n--seed=1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    named = ((f"--flagfile={preset}",), ("--flagfile", str(preset)), ("--flagfile=~/own.flags",))
    for flags in (*named, ("-seed=1",)):
        with pytest.raises(ValueError, match="--seed is given by the campaign to every run"):
            make(flags=flags)


def test_a_second_failed_run_ends_the_campaign(make, tmp_path):
    with pytest.raises(ValueError, match="runs 1 and 4 did not reach the target, the rules"):
        run(make({"1": "fails", "4": "fails"}))
    assert (tmp_path / "campaign" / "runs" / "1" / "bert.log").exists()
    assert (tmp_path / "calls").read_text().split() == ["0", "1", "2", "3", "4"]


def test_an_evaluation_that_failed_is_repeated_without_the_training(make, tmp_path):
    """The same holds for a run that was cut off before."""
    plan = {"1": "exit 75", "1.repeat-1": "unevaluated"}
    made = make(plan, offline_eval_input_file="eval", num_runs=2)
    with pytest.raises(campaign.Interrupted):
        train(made)
    with pytest.raises(ValueError, match=r"run 1 ended with exit code 1 and left no .*offline"):
        train(made)
    (tmp_path / "plan.json").write_text("{}")
    assert len(train(made)) == 2
    assert (tmp_path / "calls").read_text().split() == ["0", "0", "1", *["1.repeat-1"] * 3]


def test_a_campaign_that_was_stopped_in_an_evaluation_keeps_the_training(make, tmp_path):
    made = make({"1": "stopped"}, offline_eval_input_file="eval", num_runs=2)
    with pytest.raises(campaign.Interrupted, match=r"^stopped after run 1; the same command resum"):
        train(made)
    (tmp_path / "plan.json").write_text("{}")
    assert len(train(made)) == 2 and campaign.interrupted_runs(made) == []
    assert (tmp_path / "calls").read_text().split() == ["0", "0", "1", "1", "1"]


@pytest.mark.parametrize(
    ("of_campaign", "changes", "message"),
    [
        ({}, {"ruleset": "5.1.0"}, r"ruleset '5.1.0' has no BERT"),
        ({}, {"custom_rcps": Path("none.json")}, "No such file or directory: 'none.json'"),
        ({}, {"overrides": {"color": "red"}}, "no such field color"),
        ({"offline_eval_input_file": f"{__file__},/none"}, {}, "_file: no file matches /none"),
        ({"command": ("/no/command",)}, {}, "--run_command: /no/command: no such command"),
    ],
)
def test_what_would_spoil_the_result_is_refused_before_any_run(
    make, tmp_path, of_campaign, changes, message
):
    with pytest.raises((ValueError, OSError), match=message):
        run(dataclasses.replace(make(), **of_campaign), **changes)
    assert not (tmp_path / "calls").exists()
    assert not (tmp_path / "campaign").exists()


def test_a_damaged_log_ends_the_campaign_with_its_name(make, tmp_path):
    made = make(num_runs=2)
    train(made)
    log = tmp_path / "campaign" / "runs" / "1" / "bert.log"
    log.write_text(log.read_text()[:-30])
    with pytest.raises(ValueError, match=r"runs/1/bert.log line \d+: cut or damaged"):
        train(made)
    assert (tmp_path / "calls").read_text().split() == ["0", "1"]


def test_another_campaign_in_the_folder_is_refused_from_the_first_run_on(make, tmp_path):
    claim(make(flags=("--bad=1",)))
    claim(make())  # corrected
    (make().runs_dir / "0").mkdir()
    others = {"flags": ("--x=2",), "status": "research", "offline_eval_input_file": "eval"}
    others |= {"org": "other", "system": "other"}
    for name, value in others.items():
        with pytest.raises(ValueError, match=rf"holds another campaign \(differing: {name}\)"):
            claim(make(**{name: value}))
    (tmp_path / "campaign" / "campaign.json").unlink()
    with pytest.raises(ValueError, match="is not empty; choose another --output_dir"):
        claim(make())


def test_a_folder_with_another_campaign_at_work_is_refused(make, tmp_path):
    refusal = pytest.raises(ValueError, match="campaign: another campaign works in it; wait for it")
    with campaign.claimed(make()), refusal:
        run(make())
    shutil.rmtree(tmp_path / "campaign")
    (tmp_path / "campaign").touch()
    with pytest.raises(OSError, match="campaign: is a file, not a folder; choose another"):
        run(make())
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"org": "a b"}, "--org='a b' names folders: give 1 to 100 bytes without space, slash"),
        ({"org": ""}, "--org='' names folders"),
        ({"org": "é" * 60}, "--org='é+\\.\\.\\.é+' names folders: give 1 to 100 bytes"),
        ({"org": "a/b"}, "--org='a/b' names folders"),
        ({"org": ".."}, "--org='..' names folders"),
        ({"system": "a\nb"}, r"--system='a\\nb' names folders"),
        ({"org": "--runs"}, "--org='--runs' names folders"),
        ({"system": "x" * 300}, r"--system='x+\.\.\.x+' names folders"),
        ({"num_runs": 0}, "--runs=0: at least 1"),
        ({"flags": ()}, "give the flags of run_pretraining.py after --"),
        ({"flags": ("--seed=1",)}, "--seed is given by the campaign to every run"),
        (
            {"flags": ("--eval_input_file=x",), "offline_eval_input_file": "x"},
            "leave --eval_input_file out",
        ),
    ],
)
def test_mistakes_are_named(make, changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


TRAINING = ["--x=1", "--drop_caches", "--submission_org=example"]
TRAINING += ["--submission_platform=1xExample", "--submission_status=onprem"]
EVALUATION = ["--x=1", "--nodo_train", "--do_eval", "--input_file=/data/eval_10k"]


def written(made) -> tuple[Path, Path]:
    """The system's folder and the implementation's of a campaign's submission."""
    run_dir = made.runs_dir / "0"
    run_dir.mkdir(parents=True)
    result = read_run(write_log(run_dir / "bert.log", [0.73]))
    (run_dir / "run.json").write_text("{}")
    campaign.write_submission(made, [result], ruleset="5.0.0", overrides={})
    benchmark = made.org_dir / "benchmarks" / "bert"
    return benchmark / "1xExample", benchmark / "implementations" / "mlperf_bert"


def test_the_folder_runs_what_the_campaign_ran(make, tmp_path):
    folder, implementation = written(make(offline_eval_input_file="/data/eval_10k"))
    assert "its log is `out/bert.offline.log`" in (folder / "README.md").read_text()
    assert json.loads((folder / "1xExample_mlperf_bert.json").read_text())["flags"] == TRAINING
    assert os.access(implementation / "train_model.sh", os.X_OK)
    printed = subprocess.check_output([folder / "init_datasets.sh"], text=True)
    assert printed.startswith(f"{implementation}/docs/data.md says")
    assert (implementation / "docs" / "data.md").exists()
    # What setup.sh runs: nothing that it needs is missing.
    subprocess.run(["make", "--dry-run", "setup"], cwd=implementation, check=True)
    programs.stand_in(implementation / ".venv" / "bin" / "python", 'echo "$@"')
    script = folder / "run_and_time.sh"
    for given, place in (("9", f"{tmp_path}/9"), ("/no/9", "/no/9"), ("gs://b/9", "gs://b/9")):
        env = {**os.environ, "OUTPUT_DIR": given}
        done = programs.run(script, cwd=tmp_path, env=env, check=True)
        commands = (["run_pretraining.py", *flags] for flags in (TRAINING, EVALUATION))
        told = [" ".join([*words, f"--output_dir={place}"]) for words in commands]
        assert done.stdout.splitlines() == told
    done = programs.run(script, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1 and "OUTPUT_DIR: a new directory" in done.stderr


def test_the_sources_of_a_submission_are_what_runs_and_how_to_run_it(tmp_path, monkeypatch):
    """The official checker refuses names that start with a dot."""
    folders = "mlperf_bert mlperf_results cleanup_scripts configs cloud demo docs environment pages"
    taken = {"a.py", "b.sh", "c.md", "d.toml", "LICENSE", "Dockerfile", "Makefile"}
    taken |= {f"{name}/sub/x" for name in (*folders.split(), "tracing")}
    left = {*"tests/x build/x demo/sub/.x demo/.x/y demo/__pycache__/x e.txt .f.md".split()}
    for name in taken | left:
        (tmp_path / "from" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "from" / name).touch()
    monkeypatch.setattr(folder, "REPOSITORY", tmp_path / "from")
    folder._copy_sources(tmp_path / "to")
    made = {path for path in (tmp_path / "to").rglob("*") if path.is_file()}
    assert {str(path.relative_to(tmp_path / "to")) for path in made} == taken


def test_runs_in_containers_are_those_of_the_launcher_and_so_is_the_folder(make):
    launcher = str(REPOSITORY / "start_training.sh")
    made = make(offline_eval_input_file="/data/eval_10k")
    made = dataclasses.replace(made, command=(launcher,))
    campaign.require_startable(made)  # the file is one of the container
    assert dataclasses.replace(made, command=("srun", "-N1", launcher)).in_containers
    # A seed of the environment would be that of every run.
    start = ["env", "-u", "SEED", "OUTPUT_DIR=/runs/0"]
    assert made.run_commands(Path("/runs/0")) == [
        [*start, "EVAL_FILE=", launcher, *flags, "--output_dir=/runs/0"]
        for flags in (TRAINING, EVALUATION)
    ]
    online = dataclasses.replace(made, offline_eval_input_file=None)
    expected = [[*start, launcher, *TRAINING, "--output_dir=/runs/0"]]
    assert online.run_commands(Path("/runs/0")) == expected
    folder, implementation = written(made)
    settings = "`DATA_DIR=... WIKI_DIR=... EVAL_FILE= OUTPUT_DIR=out ./run_and_time.sh`"
    assert settings in (folder / "README.md").read_text()
    programs.stand_in(implementation / "start_training.sh", 'echo "$@"')
    env = {**os.environ, "OUTPUT_DIR": "/nowhere"}
    done = programs.run(folder / "run_and_time.sh", env=env, check=True)
    told = [" ".join([*flags, "--output_dir=/nowhere"]) for flags in (TRAINING, EVALUATION)]
    assert done.stdout.splitlines() == told


@pytest.fixture
def describe(make, tmp_path):
    """Describes the system of a run with a record."""
    made = dataclasses.replace(make(status="research"), folder=tmp_path)

    def describe(record=None, ruleset="5.0.0", **overrides) -> dict:
        (tmp_path / "run.json").write_text(json.dumps(record or {}))
        return system.describe(
            made, tmp_path, division="open", ruleset=ruleset, overrides=overrides
        )

    return describe


def test_the_software_of_the_runs_is_described(describe, monkeypatch):
    found = describe()
    framework, stack = found["framework"], found["other_software_stack"]
    assert framework.startswith("TensorFlow 2.") and stack.startswith("Python 3.")
    assert "numpy" in stack and "image" not in stack
    assert found["sw_notes"] == f"kernel {platform.release()}"
    assert found["operating_system"] == platform.freedesktop_os_release()["PRETTY_NAME"]
    monkeypatch.setenv("MLPERF_BERT_IMAGE", "sha256:4711")
    record = {"made_with": software.made_with()}
    monkeypatch.delenv("MLPERF_BERT_IMAGE")  # this process is not in it
    assert describe(record)["other_software_stack"] == f"{stack}, image sha256:4711"
    assert describe(record, framework="mine")["framework"] == "mine"


@pytest.mark.parametrize(
    ("device", "num_workers", "nodes", "gpus"),
    [
        ({"num_gpus": 4, "use_tpu": False}, 3, "3", "4"),
        ({"num_gpus": 0, "use_tpu": False}, 1, "1", "0"),
        ({"num_gpus": 0, "use_tpu": True}, 1, "1", "8"),  # as the host shows; TPUs are overrides
        (None, None, "1", "8"),
    ],
)
def test_the_description_counts_the_devices_of_the_runs(
    describe, tmp_path, monkeypatch, device, num_workers, nodes, gpus
):
    says = "yes 'A100, 81920 MiB, 1410 MHz' | head -n 8"
    tool = programs.stand_in(tmp_path / "bin" / "nvidia-smi", says)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    found = describe(
        {"parameters": {"device": device, "num_workers": num_workers} if device else {}}
    )
    assert (found["number_of_nodes"], found["accelerators_per_node"]) == (nodes, gpus)
    names = ("model_name", "memory_capacity", "frequency")
    of_gpu = ["", "", ""] if gpus == "0" else ["A100", "81920 MiB", "1410 MHz"]
    assert [found[f"accelerator_{name}"] for name in names] == of_gpu


def test_a_description_has_every_field_and_no_other(describe, tmp_path, monkeypatch):
    memory, disk = types.SimpleNamespace(total=7 * 2**30), types.SimpleNamespace(total=9 * 2**30)
    monkeypatch.setattr(system.psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(system.shutil, "disk_usage", {tmp_path: disk}.get)
    for ruleset, status in (("3.1.0", "research"), ("4.0.0", system.STATUS_SINCE_4_0["research"])):
        found = describe(ruleset=ruleset)
        assert tuple(found) == system.FIELDS
        assert found["status"] == status
        assert (found["host_memory_capacity"], found["host_storage_capacity"]) == ("7 GiB", "9 GiB")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 1, "campaign: give the flags of run_pretraining.py after --\n"),
        (["--system_description=no.json", "--", "--x"], 1, "campaign: no.json: No such file or"),
        (["--custom_rcps=gs://b/x", "--", "--x"], 1, "--custom_rcps=gs://b/x: give a local path"),
        (["--output_dir=gs://b/x", "--", "--x"], 1, "--output_dir=gs://b/x: give a local path, a"),
        (["--run_command=sh -c 'kill -KILL $$' sh", "--", "--do_train"], 75, "run 0 was stopped; "),
    ],
)
def test_the_command_ends_in_one_line(tmp_path, capsys, words, code, message):
    given = ["--org=o", "--system=s", f"--output_dir={tmp_path / 'c'}", *words]
    assert campaign.main(given) == code
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(("problems", "code", "word"), [((), 0, ""), (("9 logs",), 1, "NOT ")])
def test_the_command_prints_its_runs_and_the_verdict_and_ends_as_it_says(
    tmp_path, monkeypatch, capsys, problems, code, word
):
    runs = []
    for number, accuracies in enumerate(([0.5, 0.73], [0.5, 0.6])):
        log = write_log(tmp_path / f"{number}.log", accuracies, seed=number)
        runs.append(dataclasses.replace(read_run(log), minutes=1.25 + number))
    judged = SystemVerdict(
        name="s",
        runs=(dataclasses.replace(runs[0], cache_cleared=False, division="open"), runs[1]),
        ruleset="5.0.0",
        compliance=(Verdict(runs[0].path, "5.0.0", True, ()),) * 2,
        rcp=RcpVerdict(True, "RCP found", None, None, None, 1.25),
        rcp_source="points of a test",
        seeds=ToolVerdict("seed checker", True),
        folder_tools=(ToolVerdict("repository checker", None, ("it knows no 5.0.0",)),),
        problems=problems,
        olympic_minutes=2.0,
        official_minutes=2.5,
    )
    asked = []
    monkeypatch.setattr(campaign, "run_campaign", lambda *a, **k: asked.append((a, k)) or judged)
    folder, described = tmp_path / "c", tmp_path / "described.json"
    (folder / "runs" / "1.repeat-1").mkdir(parents=True)
    described.write_text('{"cooling": "air"}')
    words = ["--org=o", "--system=s", f"--output_dir={folder}", "--status=research"]
    words += ["--offline_eval_input_file=eval", "--custom_rcps=points.json", "--ruleset=4.0.0"]
    words.append("--runs=3")
    assert campaign.main([*words, f"--system_description={described}", "--", "--x=1"]) == code
    made = Campaign("o", "s", "research", folder, 3, ("--x=1",), offline_eval_input_file="eval")
    given = {"ruleset": "4.0.0", "custom_rcps": Path("points.json")}
    assert asked.pop() == ((made,), given | {"overrides": {"cooling": "air"}})
    assert capsys.readouterr().out.splitlines() == [
        "",
        f"submission: {folder}/submission/o",
        "run 0: success, 1.2500 minutes, accuracy 0.7300, 300,160 samples, seed 0, "
        "caches NOT emptied",
        "run 1: aborted, 2.2500 minutes, accuracy 0.6000, 0 samples, seed 1, caches emptied",
        "1: cut off, run again",
        "division open: each run departs from the closed rules, as it said at its start",
        "compliance checker: 2 of 2 logs accepted",
        "RCP checker (points of a test): passed, RCP found",
        "seed checker: passed",
        "repository checker: not applicable",
        "    it knows no 5.0.0",
        *(f"problem: {problem}" for problem in problems),
        "time to train: 2.0000 minutes, olympic mean of 2 runs; 2.5000 scaled by 1.2500, because "
        "it converged faster than the reference",
        "official summarizer: 2.5000 minutes",
        f"{word}PASSED under ruleset 5.0.0",
    ]
    campaign.main([*words[:3], "--", "--x=1"])
    usual = {"ruleset": "5.0.0", "custom_rcps": None, "overrides": {}}
    assert asked == [((Campaign("o", "s", "onprem", folder, 10, ("--x=1",)),), usual)]
