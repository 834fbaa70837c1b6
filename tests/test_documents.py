"""Every command, link, flag and path in the documents is true of this checkout."""

import collections
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pandas
import pytest

from mlperf_bert import flags_page
from mlperf_results import published
from tests.fixtures import REPOSITORY
from tests.helpers import programs, starts

DOCUMENTS = sorted(
    path
    for path in REPOSITORY.rglob("*.md")
    if not re.search(r"/\.|/build/|CHANGELOG", f"/{path.relative_to(REPOSITORY)}")
)
SOURCES = [
    path
    for pattern in ("*.py", "*.sh", "*/*.py", "*/*.sh", "cloud/*", "mlperf_*/*/*.py")
    for path in REPOSITORY.glob(pattern)
    if path.is_file() and path.parent != REPOSITORY / "tests"
]
# Programs of others, and their options in sentences.
FOREIGN = {"apptainer", "docker", "export", "kubectl", "pip", "run_glue.py", "run_qa.py"}
FOREIGN_OPTIONS = set(
    "no-cache-dir bind build-arg cap-drop cpus gpus-per-node kill-on-bad-exit nodes "
    "ntasks-per-node nv pwd valid-until-duration "
    "read-only runner tag time user xla_cpu_enable_concurrency_optimized_scheduler".split()
)
OWN_FOLDERS = (
    "benchmarks cleanup_scripts cloud configs demo docs mlperf_bert mlperf_results pages tests "
    "tracing"
)
COMMAND = re.compile(r"(python|make|docker) |\./|(cleanup_scripts|cloud|tracing)/\w")


def name_of(path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def commands_in(path) -> list[list[str]]:
    """The words of each command in an indented block, environment and comment left out."""
    text = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8"))
    found = []
    for line in re.findall(r"^    (\S.*)$", text, re.MULTILINE):
        for command in line.split(" && "):
            bare = re.sub(r"^([A-Z_]+=\S* )+", "", command)
            if COMMAND.match(bare):
                found.append(shlex.split(bare, comments=True))
    return found


def options_of(source: str) -> set[str]:
    """Names of the options that a script or module takes, by what its source declares."""
    named = re.findall(r'add_argument\(\s*"--([\w-]+)"', source)
    named += re.findall(r"\b(\w+)=\(.+, .+\)", source)  # of the clean-up's stages
    return {*named, *re.findall(r"--([a-z][\w-]*)(?=[)|= ])", source)}


def option_names(words: list[str]) -> set[str]:
    return {word[2:].partition("=")[0] for word in words if re.match(r"--[a-z]", word)}


COMMANDS = [(name_of(path), words) for path in DOCUMENTS for words in commands_in(path)]


def test_there_are_commands_in_the_documents():
    assert len(COMMANDS) > 30
    assert {words[0] for _, words in COMMANDS} > {"python", "make", "./start_training.sh"}


def script_and_arguments(program: str, arguments: list[str]) -> tuple[Path, list[str]]:
    if program != "python":
        return REPOSITORY / program, arguments
    if arguments[0] != "-m":
        # The folder of an export has copies.
        name = re.sub("^step/", "mlperf_bert/portable/", arguments[0])
        return REPOSITORY / name, arguments[1:]
    module = REPOSITORY / arguments[1].replace(".", "/")
    script = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    return script, arguments[2:]


@pytest.mark.parametrize(("name", "words"), COMMANDS, ids=lambda value: str(value)[:60])
def test_a_command_names_what_is_there(name, words):
    program, *arguments = words
    if program in FOREIGN or (program == "python" and arguments[0] in FOREIGN):
        return
    if program == "make":
        environment = {"PATH": os.environ["PATH"]}  # not that of the make that runs the tests
        programs.run("make", "--dry-run", *arguments, check=True, env=environment)
        return
    script, arguments = script_and_arguments(program, arguments)
    assert script.is_file(), f"{name}: {program} {words}"
    if "--" in arguments:  # what follows is another program's
        arguments = arguments[: arguments.index("--")]
    takes_presets = {"run_pretraining.py", "export.py"}
    if script.name in takes_presets or script.suffix == ".sh":
        for preset in re.findall(r"--flagfile=(\S+)", " ".join(arguments)):
            assert (REPOSITORY / preset).is_file(), preset
    if script.name not in {"run_pretraining.py", "start_training.sh", "trace.sh"}:
        declared = options_of(script.read_text(encoding="utf-8"))
        if (known := name_of(script)) in flags_page.EXPLAINED_IN:
            declared |= flags_page.options_of(known).keys()
        assert option_names(arguments) <= declared, f"{name}: {words}"


def test_every_module_that_is_named_as_a_command_exists():
    """In documents, docstrings and messages alike."""
    listed = ["git", "ls-files", ":!CHANGELOG.md", "*.md", "*.py", "*.sh", "Makefile", ".ci/run"]
    output = subprocess.run(listed, cwd=REPOSITORY, check=True, capture_output=True, text=True)
    modules = rf"((?:{OWN_FOLDERS.replace(' ', '|')})[.\w]*)"
    spoken = re.compile(rf"python -m {modules}")
    found = collections.defaultdict(set)
    for name in output.stdout.split():
        for command in spoken.findall((REPOSITORY / name).read_text("utf-8")):
            found[command].add(name)
    assert len(found) > 25
    del found["mlperf_results."]  # a table's head: its rows have the rest
    for module, names in found.items():
        script, _ = script_and_arguments("python", ["-m", module.rstrip(".")])
        assert script.is_file(), f"{module} in {names}"


LEVELS = ("test", "gate", "test-all", "test-container", "test-compilers")


def test_contributing_and_help_agree_on_what_runs_where():
    """Also the marks: each names the command that runs it."""
    helped = dict(re.findall(r'@echo "make (\S+) +([^:]+:.*)"$', read("Makefile"), re.MULTILINE))
    table = re.findall(
        r"^\| `make (\S+)` \| ([^|]+) \| ([^|]*?) ?\| ([^|]+) \|$",
        read("CONTRIBUTING.md"),
        re.MULTILINE,
    )
    assert [command for command, *_ in table] == list(LEVELS)
    assert {command: f"{time}: {what}" for command, time, _, what in table} == {
        command: helped[command] for command in LEVELS
    }
    marks = {mark.strip("`"): command for command, _, mark, _ in table if mark.startswith("`")}
    told = re.findall(r'^    "(\w+): .*`make (\S+)`', read("pyproject.toml"), re.MULTILINE)
    assert dict(told) == marks


def read(name: str) -> str:
    return (REPOSITORY / name).read_text(encoding="utf-8")


CODE = [
    (name_of(path), code)
    for path in DOCUMENTS
    for code in re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.M | re.S)
]


@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_other_trackers_take_the_metrics_of_a_run(tracker, tmp_path, monkeypatch):
    """With stand-ins: the lines were tried with the real ones, in the versions that are named."""
    [code] = [code for name, code in CODE if f"import json, {tracker}" in code]
    assert len(code.splitlines()) == 5
    metrics = [{"kind": "train", "step": 10, "samples": 640, "loss": 7.5}]
    metrics += [{"kind": "eval", "step": 10, "samples": 640, "masked_lm_accuracy": 0.1}]
    (tmp_path / "output").mkdir()
    (tmp_path / "output" / "metrics.jsonl").write_text("\n".join(map(json.dumps, metrics)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, tracker, stand_in := mock.MagicMock())
    exec(code, {})
    if tracker == "wandb":
        stand_in.init.assert_called_once_with(project="bert", mode="offline")
        logged = stand_in.init.return_value.__enter__.return_value.log.call_args_list
        samples = [metrics["samples"] for (metrics,), _ in logged]
    else:
        stand_in.start_run.assert_called_once_with(run_name="bert")
        logged = stand_in.log_metrics.call_args_list
        samples = [options["step"] for _, options in logged]
    assert samples == [640, 640]
    names = {name for (metrics,), _ in logged for name in metrics} - {"samples"}
    assert names == {"train/step", "train/loss", "eval/step", "eval/masked_lm_accuracy"}


def test_every_published_result_that_a_page_names_is_there():
    text = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS)
    known = {entry.name for entry in published.load()}
    assert set(re.findall(r"\b\d\.\d/[A-Z]\w+/[\w.-]*\w", text)) <= known


def test_the_published_results_are_read_in_one_line(monkeypatch):
    [code] = [code for name, code in CODE if "published.parquet" in code]
    monkeypatch.chdir(REPOSITORY)
    found = {"pandas": pandas}
    exec(code, found)
    assert len(found["table"]) == 337


def test_everything_at_the_root_is_in_the_tree_of_the_readme():
    tree = (REPOSITORY / "README.md").read_text(encoding="utf-8").partition("## What is where")[2]
    for path in REPOSITORY.iterdir():
        is_package = path.is_dir() and any(path.glob("*.py"))
        if is_package or (path.suffix in {".py", ".sh"} and path.name != "conftest.py"):
            assert path.name in tree


def test_the_flags_of_every_training_parse(tmp_path):
    commands = [
        [word for word in words[words.index("run_pretraining.py") :] if word != "..."]
        for _, words in COMMANDS
        if "run_pretraining.py" in words and "--profile_steps" not in words
    ]
    assert len(commands) >= 3
    program = tmp_path / "parse.py"
    program.write_text(
        "import json, sys, run_pretraining\n"
        "from mlperf_bert import command_line\n"
        "command_line.define(run_pretraining.RunConfig, run_pretraining.Mode)\n"
        "flags = run_pretraining.FLAGS\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    given = {flag.partition('=')[0] for flag in words}\n"
        "    needed = {'--bert_config_file': 'x', '--input_file': 'x', '--output_dir': 'x'}\n"
        "    rest = flags([*words, *(f'{k}={v}' for k, v in needed.items() if k not in given)])\n"
        "    assert len(rest) == 1, rest\n"
        "    flags.unparse_flags()\n"
    )
    starts.run([sys.executable, program, json.dumps(commands)], check=True)


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_leads_somewhere(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{target} in {name_of(path)}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
            assert anchor in anchors, f"{target} in {name_of(path)}"


@functools.cache
def known_options() -> set[str]:
    """The options of all our programs."""
    known = set.union(*(options_of(source.read_text(encoding="utf-8")) for source in SOURCES))
    return known.union(*map(flags_page.options_of, flags_page.EXPLAINED_IN))


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_flag_and_path_in_a_sentence_exists(path):
    text = path.read_text(encoding="utf-8")
    known = known_options()
    for quoted in re.findall(r"`([^`\n]+)`", text):
        for name in re.findall(r"(?:^| )--(?:no_?)?([a-z][\w-]*)", quoted):
            negated = f"no{name}" in known or f"no_{name}" in known
            assert name in known | FOREIGN_OPTIONS or negated, f"--{name} in {name_of(path)}"
        if re.fullmatch(rf"({'|'.join(OWN_FOLDERS.split())})/[\w./-]*", quoted):
            here = [REPOSITORY / quoted, path.parent / quoted]
            assert any(place.exists() for place in here), f"{quoted} in {name_of(path)}"


def test_what_fits_is_what_a_compiler_was_seen_to_say(repository):
    """The page on training repeats figures of the notes and of the page on the exported step."""
    training, notes, step = (
        (repository / name).read_text()
        for name in ("docs/training.md", "benchmarks/NOTES.md", "docs/portable_step.md")
    )
    section = re.search(r"\n## Does it fit\?\n.*?(?=\n## )", training, re.DOTALL)[0]
    figures = re.findall(r"\d+\.\d of \d+\.\d", section)
    assert len(figures) >= 8
    assert not [each for each in figures if each not in notes + step]
