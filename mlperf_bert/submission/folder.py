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

from mlperf_bert.files import whole
from mlperf_bert.mlperf.log_reader import RunResult
from mlperf_bert.submission import system
from mlperf_bert.submission.plan import LAUNCHER, REPOSITORY, Campaign, description_path

IMPLEMENTATION = "mlperf_bert"
_ABSOLUTE_OUTPUT_DIR = """\
case ${OUTPUT_DIR:?a new directory} in /*|gs://*) ;; *) OUTPUT_DIR=$PWD/$OUTPUT_DIR ;; esac
"""

# The repository checker refuses names that start with a dot, and files of 50 MB.
_SOURCES = "[!.]*.py [!.]*.sh [!.]*.md [!.]*.toml LICENSE Dockerfile Makefile".split()
_SOURCE_FOLDERS = (
    "mlperf_bert mlperf_results cleanup_scripts configs cloud demo docs environment pages tracing"
).split()


def write_submission(
    campaign: Campaign,
    runs: Sequence[RunResult],
    *,
    ruleset: str,
    overrides: Mapping[str, object],
) -> None:
    """Writes a campaign's submission again, whole or not at all, describing this machine.

    Args:
      campaign: whose submission it is.
      runs: in order.
      ruleset: as `overrides` that of `system.describe`.
      overrides: fields that the submitter knows better.
    """
    name, run_dir = campaign.system, runs[0].path.parent
    description = system.describe(
        campaign, run_dir, division=division_of(runs), ruleset=ruleset, overrides=overrides
    )
    with whole.folder_written_beside(campaign.org_dir) as partial:
        results = partial / "results" / name / "bert"
        results.mkdir(parents=True)
        for number, run in enumerate(runs):
            shutil.copyfile(run.path, results / f"result_{number}.txt")
        _write_json(description_path(partial, name), description)
        benchmark = partial / "benchmarks" / "bert"
        _copy_sources(benchmark / "implementations" / IMPLEMENTATION)
        _write_run_folder(benchmark / name, campaign, description)
        if campaign.org_dir.exists():
            shutil.rmtree(campaign.org_dir)


def division_of(runs: Sequence[RunResult]) -> str:
    """Returns "closed" if every log says so, else "open"."""
    return "closed" if all(run.division == "closed" for run in runs) else "open"


def _copy_sources(folder: Path) -> None:
    folder.mkdir(parents=True)
    for pattern in _SOURCES:
        for path in sorted(REPOSITORY.glob(pattern)):
            shutil.copy(path, folder / path.name)  # keeps the mode, so that scripts can be started
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in _SOURCE_FOLDERS:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, folder / name, ignore=ignored)


def _write_run_folder(folder: Path, campaign: Campaign, description: Mapping[str, object]) -> None:
    folder.mkdir(parents=True)
    name, commands = campaign.system, campaign.flags_of_commands()
    _write_json(
        folder / f"{name}_{IMPLEMENTATION}.json",
        {"implementation": IMPLEMENTATION, "framework": description["framework"]}
        | {"system_name": name, "flags": commands[0]},
    )
    go_there = f'cd "$(dirname "$0")/../implementations/{IMPLEMENTATION}"\n'
    # The campaign's commands, without the output directory: a reader chooses another one.
    starter, settings = [".venv/bin/python", "run_pretraining.py"], ""
    setup = f"{go_there}make setup\n"  # it installs nothing outside the folder
    if campaign.in_containers:
        starter, settings = [f"./{LAUNCHER}"], "DATA_DIR=... WIKI_DIR=... "
        settings += "EVAL_FILE= " if len(commands) > 1 else ""
        setup = f'echo "./{LAUNCHER} builds the image"\n'
    run = [shlex.join([*starter, *flags]) + ' --output_dir="$OUTPUT_DIR"\n' for flags in commands]
    bodies = {
        "setup.sh": setup,
        "init_datasets.sh": f'{go_there}echo "$PWD/docs/data.md says how to get the data"\n',
        "run_and_time.sh": _ABSOLUTE_OUTPUT_DIR + go_there + "".join(run),
    }
    for script, body in bodies.items():
        path = folder / script
        path.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{body}", encoding="utf-8")
        path.chmod(0o755)
    (folder / "README.md").write_text(
        f"# BERT on {name}\n\n{description['framework']}, {description['operating_system']}.\n"
        f"One run: `./setup.sh`, `./init_datasets.sh`, then\n"
        f"`{settings}OUTPUT_DIR=out ./run_and_time.sh`;\n"
        f"its log is `out/{campaign.log_name}`.\n",
        encoding="utf-8",
    )


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
