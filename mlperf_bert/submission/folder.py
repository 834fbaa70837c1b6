"""The folder that a submitter hands in.

    ORG/systems/SYSTEM.json
    ORG/results/SYSTEM/bert/result_0.txt ... result_9.txt
    ORG/benchmarks/bert/implementations/mlperf_bert/...
    ORG/benchmarks/bert/SYSTEM/SYSTEM_mlperf_bert.json README.md setup.sh init_datasets.sh
                               run_and_time.sh

Source: submission rules, "Directory structure, Training"; the official package checker.
"""

import json
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mlperf_bert.files import paths
from mlperf_bert.files.whole import directory_written_beside

IMPLEMENTATION = "mlperf_bert"
_LAUNCHER = "./start_training.sh"
_ABSOLUTE_OUTPUT_DIR = """\
case ${OUTPUT_DIR:?a new directory} in /*|gs://*) ;; *) OUTPUT_DIR=$PWD/$OUTPUT_DIR ;; esac
"""

# The repository checker refuses names that start with a dot, and files of 50 MB.
_SOURCES = "*.py *.sh *.md *.toml LICENSE Dockerfile Makefile".split()
_SOURCE_FOLDERS = (
    "mlperf_bert cleanup_scripts configs cloud demo docs environment exchange pages tracing".split()
)


def write_folder(
    org_dir: Path,
    *,
    system: str,
    description: Mapping[str, object],
    logs: Sequence[paths.Location],
    commands: Sequence[Sequence[str]],
    in_containers: bool,
    log_name: str,
    sources: Path,
) -> None:
    """Write the folder again, whole or not at all.

    Args:
      org_dir: the submitter's folder; replaced.
      system: name of the system, which names files and folders.
      description: of the system.
      logs: of the runs, in order.
      commands: flags of run_pretraining.py, for each command of run_and_time.sh.
      in_containers: whether start_training.sh, which sets further flags, starts these commands.
      log_name: of the file in the output directory that is the result.
      sources: the checkout that was run.
    """
    with directory_written_beside(org_dir) as partial:
        results = partial / "results" / system / "bert"
        results.mkdir(parents=True)
        for number, log in enumerate(logs):
            (results / f"result_{number}.txt").write_bytes(paths.read_bytes(log))
        _write_json(description_path(partial, system), description)
        benchmark = partial / "benchmarks" / "bert"
        _copy_sources(sources, benchmark / "implementations" / IMPLEMENTATION)
        starter = [_LAUNCHER] if in_containers else [".venv/bin/python", "run_pretraining.py"]
        _write_run_folder(benchmark / system, system, description, commands, starter, log_name)
        if org_dir.exists():
            shutil.rmtree(org_dir)


def description_path(org_dir: paths.Location, system: str) -> paths.Location:
    """Return where a submitter's folder describes a system."""
    return org_dir / "systems" / f"{system}.json"


def result_files(folder: paths.Location) -> list[paths.Location]:
    """Return result_0.txt, result_1.txt, ... of a folder, by number."""

    def number_of(path: paths.Location) -> int:
        digits = path.stem.removeprefix("result_")
        return int(digits) if digits.isdigit() else -1

    return sorted(folder.glob("result_*.txt"), key=number_of)


def _copy_sources(sources: Path, folder: Path) -> None:
    folder.mkdir(parents=True)
    for pattern in _SOURCES:
        for path in sorted(sources.glob(pattern)):
            shutil.copy(path, folder / path.name)  # with its mode: start_training.sh is started
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in _SOURCE_FOLDERS:
        if (sources / name).is_dir():
            shutil.copytree(sources / name, folder / name, ignore=ignored)


def _write_run_folder(
    folder: Path,
    system: str,
    description: Mapping[str, object],
    commands: Sequence[Sequence[str]],
    starter: Sequence[str],
    log_name: str,
) -> None:
    folder.mkdir(parents=True)
    _write_json(
        folder / f"{system}_{IMPLEMENTATION}.json",
        {"implementation": IMPLEMENTATION, "framework": description["framework"]}
        | {"system_name": system, "flags": list(commands[0])},
    )
    implementation = f"../implementations/{IMPLEMENTATION}"
    go_there = f'cd "$(dirname "$0")/{implementation}"\n'
    run = [shlex.join([*starter, *flags]) + ' --output_dir="$OUTPUT_DIR"\n' for flags in commands]
    in_containers = starter[0] == _LAUNCHER
    setup = f'echo "{_LAUNCHER} builds the image"\n' if in_containers else f"{go_there}make setup\n"
    settings = "DATA_DIR=... WIKI_DIR=... " if in_containers else ""
    if in_containers and len(commands) > 1:
        settings += "EVAL_FILE= "
    bodies = {
        "setup.sh": setup,
        "init_datasets.sh": f'{go_there}echo "$PWD/docs/data.md says how to get the data"\n',
        "run_and_time.sh": _ABSOLUTE_OUTPUT_DIR + go_there + "".join(run),
    }
    for name, body in bodies.items():
        path = folder / name
        path.write_text(
            f"#!/usr/bin/env bash\nset -euo pipefail\n{body}",
            encoding="utf-8",
        )
        path.chmod(0o755)
    (folder / "README.md").write_text(
        f"# BERT on {system}\n\n{description['framework']}, {description['operating_system']}.\n"
        f"One run: `./setup.sh`, `./init_datasets.sh`, then\n"
        f"`{settings}OUTPUT_DIR=out ./run_and_time.sh`;\n"
        f"its log is `out/{log_name}`.\n",
        encoding="utf-8",
    )


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
