"""From a Wikipedia dump to text/??/wiki_??, as the reference's WikiExtractor writes them.

WikiExtractor is a program of its own (its licence is the GPL). Several copies of it run beside each
other, on some thousand pages each, and the files are written here: so they appear whole, an
extraction that was interrupted goes on, and a copy that fails is an error.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime
import io
import itertools
import posixpath
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from mlperf_bert.data import download, provenance
from mlperf_bert.data.articles import in_files
from mlperf_bert.data.provenance import printed_by
from mlperf_bert.data.published import PublishedFile
from mlperf_bert.data.wiki_dump import Dump
from mlperf_bert.files.locks import held
from mlperf_bert.files.whole import digest, written_beside
from mlperf_bert.messages import Progress

COMMIT = "3162bb6c3c9ebd2d15be507aa11d6fa818a454ac"
PROGRAM = "WikiExtractor.py"
URL = f"https://raw.githubusercontent.com/attardi/wikiextractor/{COMMIT}/{PROGRAM}"
PUBLISHED = PublishedFile(PROGRAM, 119_222, "96fc661a218d8e881f222133e053eb52")
SHA256 = "36c067293e68c2d04d886bd410cc7529b791c6ea3cfa1c46b3e032838298471a"
PYTHONS = ("3.10", "3.9", "3.8", "3.7")
"""On which the program runs. From 3.11 on Python refuses its two regular expressions that have
"(?i)" in the middle."""
STEP = "extraction"
LOG_NAME = "wikiextractor.log"
_FILES_PER_FOLDER = 100
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_AT_ONCE_BYTES = 16 << 20
"""Of XML that a copy of the program gets: seconds of work, of which its start takes a tenth."""
_RUNNER = Path(__file__).with_name("wikiextractor.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Extraction:
    """The parameters of the step in provenance.json, and how far it has come."""

    wiki: str | None
    today: str
    wikiextractor: str
    """The commit."""
    python: str
    files: int = 0
    articles: int = 0
    failed_articles: int = 0
    """The program has left them out; its log says why."""


def extract(
    *,
    dump: Dump,
    folder: Path,
    today: datetime.date | None,
    program: Path,
    python: Path,
    num_processes: int,
) -> Extraction:
    """Writes the articles of a dump into `folder`/??/wiki_??, or goes on where it was interrupted.

    Args:
      today: the date that articles name as today; by default that of the interrupted extraction,
        else the clock's.

    Raises:
      ValueError: the dump is damaged, or its pages are laid out in another way; the folder is of
        another extraction; the program fails.
      OSError: something cannot be read or written.
    """
    with held(folder, by_another="another process extracts into it"):
        source = provenance.describe(dump.path, folder, digest="")
        extraction, is_complete = _begun(source, folder, today)
        if is_complete:
            return extraction
        extraction = dataclasses.replace(extraction, wiki=dump.wiki, python=_version(python))
        _note(folder, source, extraction)
        command = [str(python), "-I", "-X", "utf8", "-W", "ignore", str(_RUNNER)]
        command += [str(program), extraction.today]
        with (
            (folder / LOG_NAME).open("ab") as log,
            contextlib.closing(
                _extracted(dump, extraction.articles, command, log, num_processes)
            ) as articles,
        ):
            for content in in_files(articles):
                path = folder / file_name(extraction.files)
                path.parent.mkdir(exist_ok=True)
                with written_beside(path) as file:
                    file.writelines(content)
                extraction = dataclasses.replace(
                    extraction,
                    files=extraction.files + 1,
                    articles=extraction.articles + len(content),
                    failed_articles=extraction.failed_articles + content.count(b""),
                )
                # After the file: what is not recorded is extracted again, to the same bytes.
                _note(folder, source, extraction)
        if extraction.failed_articles == extraction.articles:
            raise _failed(folder / LOG_NAME, f"on all {extraction.articles:,} articles")
        _note(folder, provenance.describe(dump.path, folder), extraction, is_complete=True)
        return extraction


def _note(
    folder: Path, source: provenance.File, extraction: Extraction, *, is_complete: bool = False
) -> None:
    """Records how far an extraction has come; only a complete one has outputs."""
    provenance.note(
        folder,
        step=STEP,
        inputs=[source],
        outputs=sorted(folder.glob("??/wiki_??")) if is_complete else [],
        parameters=dataclasses.asdict(extraction),
    )


def _begun(
    source: provenance.File, folder: Path, today: datetime.date | None
) -> tuple[Extraction, bool]:
    """What is there already, and whether it is complete; ValueError if it is of something else."""
    new = Extraction(
        wiki=None,
        today=(today or datetime.date.today()).isoformat(),
        wikiextractor=COMMIT,
        python="",
    )
    record = provenance.of_step(folder, STEP)
    if record is None:
        if unknown := next(folder.glob("??/wiki_*"), None):
            raise ValueError(f"{unknown}: nothing says what it is from; give another folder")
        return new, False
    again = f"remove {folder} and extract again"
    try:
        [dump], before = record.inputs, provenance.fitting(Extraction, record.parameters)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / provenance.NAME}: damaged ({error}); {again}") from error
    if not before.files:
        return new, False
    there = [posixpath.basename(dump.path), dump.bytes, before.wikiextractor, before.today]
    given = [posixpath.basename(source.path), source.bytes, COMMIT]
    given.append(new.today if today else before.today)
    if there != given:
        raise ValueError(
            f"{folder}: is of {there}, given is {given}; give another --out_dir, or remove this one"
        )
    for number in range(before.files):
        if not (path := folder / file_name(number)).is_file():
            raise ValueError(f"{path}: missing; {again}")
    if not record.outputs:
        print(f"{folder}: goes on behind {before.articles:,} articles", file=sys.stderr)
    return before, bool(record.outputs)


def file_name(number: int) -> str:
    """AA/wiki_00, ..., AA/wiki_99, AB/wiki_00, and so on."""
    folder, file = divmod(number, _FILES_PER_FOLDER)
    return f"{_LETTERS[folder // 26 % 26]}{_LETTERS[folder % 26]}/wiki_{file:02}"


def _extracted(
    dump: Dump, skipped: int, command: list[str], log: IO[bytes], num_processes: int
) -> Generator[bytes, None, None]:
    """The text of every article but the first `skipped`, in the order of the dump.

    Ends only after the last one: a program that fails, or a dump that is damaged, raises.
    """
    waiting: collections.deque[concurrent.futures.Future[list[bytes]]] = collections.deque()
    pages = itertools.islice(dump.articles(), skipped, None)
    with (
        concurrent.futures.ThreadPoolExecutor(num_processes) as pool,
        Progress(total=dump.size_bytes, unit="B", description="extract") as progress,
    ):
        for some in in_files(pages, at_most_bytes=_AT_ONCE_BYTES):
            waiting.append(pool.submit(_run, command, dump.head, some, log))
            progress.advance(dump.position - progress.done)
            if len(waiting) > num_processes:
                yield from waiting.popleft().result()
        for done in waiting:
            yield from done.result()


def _run(command: list[str], head: bytes, pages: list[bytes], log: IO[bytes]) -> list[bytes]:
    """The texts of some articles, by a copy of the program."""
    done = subprocess.run(command, input=head + b"".join(pages), stdout=subprocess.PIPE, stderr=log)
    output = io.BytesIO(done.stdout)
    articles = [output.read(int(size)) for size in iter(output.readline, b"")]
    if done.returncode or len(articles) != len(pages):
        raise _failed(Path(log.name), f"with exit code {done.returncode}")
    return articles


def _failed(log: Path, how: str) -> ValueError:
    return ValueError(
        f"WikiExtractor failed {how}; the cause is in {log}; repeat the command to go on"
    )


def find_program(path: Path | None, cache: Path) -> Path:
    """WikiExtractor.py in the file or folder given, else in the cache, else fetched into it.

    Raises:
      ValueError: it cannot be had, or it is another version.
      OSError: there is no such file.
    """
    program = cache / PROGRAM if path is None else path / PROGRAM if path.is_dir() else path
    if path is None and not program.exists():
        download.fetch(URL, program, PUBLISHED)
    if (sha256 := digest(program, "sha256")) != SHA256:
        raise ValueError(
            f"{program}: its SHA-256 is {sha256}, that of WikiExtractor at commit {COMMIT[:8]} is "
            f"{SHA256}; give the file of this commit, or remove this one"
        )
    return program


def find_python() -> Path:
    """A Python on which the program runs: on the PATH, of pyenv, or of uv, which may fetch it.

    Raises:
      ValueError: there is none.
    """
    for path in _pythons():
        if (version := _version(path)) and version.rpartition(".")[0] in PYTHONS:
            return path
    raise ValueError(
        f"WikiExtractor needs a Python of {', '.join(PYTHONS)}, and there is none: install one so "
        "that python3.10 is on the PATH, or uv (pip install uv), which fetches it; or use the "
        "image: docker build --file environment/Dockerfile.extractor --tag mlperf-bert:extractor ."
    )


def _pythons() -> Iterator[Path]:
    for version in PYTHONS:
        if found := shutil.which(f"python{version}"):
            yield Path(found)
        # pyenv's python3.10 on the PATH ends with an error unless that version is its chosen one.
        yield from map(
            Path, printed_by("pyenv", "whence", "--path", f"python{version}").split("\n")
        )
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        print(f"uv: looking for Python {PYTHONS[0]}", file=sys.stderr)
        printed_by(uv, "python", "install", "--quiet", PYTHONS[0])
        yield Path(printed_by(uv, "python", "find", "--managed-python", "--no-project", PYTHONS[0]))


def _version(python: Path) -> str:
    return printed_by(str(python), "-I", "-c", "import platform; print(platform.python_version())")
