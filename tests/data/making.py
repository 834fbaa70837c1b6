"""Scripts of the clean-up, the real sample cleaned by them, and tables that split sentences."""

import json
import os
import subprocess
import sys
from pathlib import Path

from mlperf_bert.data.punkt import PunktTables
from tests.data.reference_figures import md5
from tests.fixtures import REPOSITORY
from tests.helpers import programs


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


def clean_up_sample(shared, work) -> dict:
    """Cleans a copy of the real sample, whose results are those of the reference: its figures."""
    golden = json.loads((shared / "golden" / "data.json").read_text())
    clean_up(
        "process_wiki.sh",
        "wiki_??",
        folder=work,
        check=True,
        PUNKT=str(shared / "data" / "nltk_data" / "tokenizers" / "punkt_tab" / "english"),
        NUM_TEST_ARTICLES=str(golden["separation"]["num_test_articles"]),
        BLOCK_SIZE=str(golden["gather"]["block_size_mb"]),
    )
    found = {path.name: md5(path) for path in (work / "results").glob("*[!n]")}
    assert found == golden["results_md5"]
    return golden


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
