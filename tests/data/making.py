"""Data sets of three small parts, made by the command line; scripts of the clean-up; archives."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mlperf_bert import options
from mlperf_bert.data import parts
from mlperf_bert.data.dataset import DatasetConfig
from mlperf_bert.data.punkt import PunktTables
from tests.data.reference_figures import md5
from tests.fixtures import REPOSITORY
from tests.helpers import programs, starts

FLAGS = {"max_seq_length": 32, "max_predictions_per_seq": 5, "dupe_factor": 2}


def command(work, **flags) -> list[str]:
    flags = {
        "input_file": f"{work}/part-*",
        "output_dir": work / "out",
        "vocab_file": work / "vocab.txt",
        "nworker": 2,
        **FLAGS,
        **flags,
    }
    given = (f"--{name}={value}" for name, value in flags.items() if value is not None)
    return [sys.executable, "create_pretraining_data.py", *given]


def config_of(**flags) -> DatasetConfig:
    """How a data set is made by these flags and the defaults of the others."""
    defaults = {name: about.default for name, about in options.flags_of(DatasetConfig).items()}
    return DatasetConfig(**options.values_of(DatasetConfig, defaults | flags, {}))


def run(work, *, check: bool = False, **flags) -> subprocess.CompletedProcess:
    return starts.run(command(work, **flags), check=check)


def clean_up(
    script: str, *words, folder=REPOSITORY, check: bool = False, **environment
) -> subprocess.CompletedProcess:
    """Runs one of cleanup_scripts/, or a stage without a script, in a folder, with this Python."""
    path = REPOSITORY / "cleanup_scripts" / script
    command = [sys.executable, path] if script.endswith(".py") else [path]
    if not path.exists():
        command = [sys.executable, path.with_name("clean_up.py"), script]
    given = {**os.environ, "PYTHON": sys.executable, **environment}
    return programs.run(*command, *words, cwd=folder, env=given, timeout=600, check=check)


def clean_up_sample(shared, work, pattern) -> dict:
    """Cleans a copy of the real sample, whose results are those of the reference: its figures."""
    golden = json.loads((shared / "golden" / "data.json").read_text())
    clean_up(
        "process_wiki.sh",
        pattern,
        folder=work,
        check=True,
        PUNKT=str(shared / "data" / "nltk_data" / "tokenizers" / "punkt_tab" / "english"),
        NUM_TEST_ARTICLES=str(golden["separation"]["num_test_articles"]),
        BLOCK_SIZE=str(golden["gather"]["block_size_mb"]),
    )
    found = {path.name: md5(path) for path in (work / "results").glob("*[!n]")}
    assert found == golden["results_md5"]
    return golden


def parts_of(work) -> dict[str, parts.File]:
    """Each part that the record of out/ has."""
    made = parts.read(work / "out").get(parts.PARTS)
    return made.files if made else {}


def visible(folder) -> set[str]:
    return {path.name for path in folder.iterdir()} - {".lock"}


def fails(done) -> str:
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def write_tables(tables: PunktTables, folder: Path) -> None:
    """Writes the four files of nltk's punkt_tab."""
    folder.mkdir(exist_ok=True, parents=True)
    lines = {
        "abbrev_types.txt": tables.abbrev_types,
        "collocations.tab": map("\t".join, tables.collocations),
        "ortho_context.tab": (f"{kind}\t{bits}" for kind, bits in tables.ortho_context.items()),
        "sent_starters.txt": tables.sent_starters,
    }
    for name, entries in lines.items():
        (folder / name).write_text("".join(f"{entry}\n" for entry in sorted(entries)))
