"""From a Wikipedia dump to text/??/wiki_??, as the reference's WikiExtractor writes them.

WikiExtractor runs as a program of its own (its licence is the GPL): this module sends it the pages
of the articles and writes the files, so that they appear whole, an extraction that was interrupted
goes on, and a full disk or a dead process is an error. The program by itself would wait without
end for both.
"""

import concurrent.futures
import contextlib
import dataclasses
import datetime
import errno
import os
import posixpath
import shutil
import signal
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
from mlperf_bert.messages import Progress, printable

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
_LINE_BYTES = 2000
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
        another extraction; the program fails; the disk is full.
      OSError: something cannot be read or written.
    """
    with held(folder, by_another="another process extracts into it"):
        try:
            before, is_complete = _read(dump, folder, today) or (None, False)
            if before and is_complete:
                return before
            extraction = before or Extraction(
                wiki=dump.wiki,
                today=(today or datetime.date.today()).isoformat(),
                wikiextractor=COMMIT,
                python=_version(python),
            )
            command = [str(python), "-I", "-X", "utf8", "-W", "ignore", str(_RUNNER), str(program)]
            options = [extraction.today, "-", "--output=-", "--quiet"]
            options += [f"--processes={num_processes}"]
            return _write_files(dump, folder, extraction, command + options)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ValueError(
                f"{folder}: {error.strerror}; make room and repeat the command: it goes on"
            ) from error


def _write_files(
    dump: Dump, folder: Path, extraction: Extraction, command: list[str]
) -> Extraction:
    """Writes the files that are missing; returns what is complete then."""
    log = folder / LOG_NAME
    _note(dump, folder, extraction)
    with contextlib.closing(_extracted(dump, extraction.articles, command, log)) as articles:
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
            _note(dump, folder, extraction)
    if extraction.failed_articles == extraction.articles:
        raise ValueError(
            f"{log}: WikiExtractor failed on all {extraction.articles:,} articles: "
            f"{_last_line(log)}; see the log for the cause"
        )
    _note(dump, folder, extraction, is_complete=True)
    return extraction


def _note(dump: Dump, folder: Path, extraction: Extraction, *, is_complete: bool = False) -> None:
    """Records how far an extraction has come; only a complete one has a digest and outputs."""
    sha256 = f"sha256:{dump.sha256}" if is_complete else ""
    provenance.note(
        folder,
        step=STEP,
        inputs=[provenance.describe(dump.path, folder, digest=sha256)],
        outputs=sorted(folder.glob("??/wiki_??")) if is_complete else [],
        parameters=dataclasses.asdict(extraction),
    )


def _read(dump: Dump, folder: Path, today: datetime.date | None) -> tuple[Extraction, bool] | None:
    """What is there already, and whether it is complete; ValueError if it is of something else."""
    record = provenance.of_step(folder, STEP)
    if record is None:
        if unknown := next(folder.glob("??/wiki_*"), None):
            raise ValueError(f"{unknown}: nothing says what it is from; give another folder")
        return None
    try:
        [source], extraction = record.inputs, provenance.fitting(Extraction, record.parameters)
    except (TypeError, ValueError) as error:
        damaged = f"{folder / provenance.NAME}: damaged ({error})"
        raise ValueError(f"{damaged}; remove {folder} and extract again") from error
    there = [posixpath.basename(source.path), source.bytes, extraction.wikiextractor]
    given = [dump.path.name, dump.size_bytes, COMMIT]
    if today:
        there, given = [*there, extraction.today], [*given, today.isoformat()]
    if there != given and extraction.files:
        raise ValueError(
            f"{folder}: is of {there}, given is {given}; give another --out_dir, or remove this one"
        )
    for path in (folder / file_name(number) for number in range(extraction.files)):
        if not path.is_file():
            raise ValueError(f"{path}: missing; remove {folder} and extract again")
    if not record.outputs and extraction.files:
        print(
            f"{folder}: {extraction.files:,} files are there; the dump is read up to article "
            f"{extraction.articles + 1:,}, and the extraction goes on",
            file=sys.stderr,
        )
    return (extraction, bool(record.outputs)) if there == given else None


def file_name(number: int) -> str:
    """AA/wiki_00, ..., AA/wiki_99, AB/wiki_00, and so on."""
    folder, file = divmod(number, _FILES_PER_FOLDER)
    return f"{_LETTERS[folder // 26 % 26]}{_LETTERS[folder % 26]}/wiki_{file:02}"


def _extracted(
    dump: Dump, skipped: int, command: list[str], log: Path
) -> Generator[bytes, None, None]:
    """The text of every article but the first `skipped`, in the order of the dump.

    Ends only after the last one: a program that fails, or a dump that is damaged, raises.
    """
    received = 0
    with log.open("ab") as errors, contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # so that all its processes can be ended
            )
        )
        assert process.stdin and process.stdout
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(2))
        stack.callback(_end_all, process)  # first, so that the threads do not wait for it
        pool.submit(_end_what_is_left, process)
        sent = pool.submit(_send, dump, skipped, process.stdin)
        while header := process.stdout.readline():  # as wikiextractor.py writes
            article = process.stdout.read(int(header))
            if len(article) < int(header):
                break
            received += 1
            yield article
        has_failed = process.wait() != 0
        with contextlib.suppress(BrokenPipeError):
            has_failed |= sent.result() != received
    if has_failed:
        raise ValueError(
            f"{log}: WikiExtractor failed (exit code {process.returncode}) after "
            f"{skipped + received:,} articles: {_last_line(log)}; "
            + ("repeat the command to go on" if received else "see the log for the cause")
        )


def _end_all(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _end_what_is_left(process: subprocess.Popen) -> None:
    """Ends the processes that would wait without end for their first one, if that is killed."""
    process.wait()
    _end_all(process)


def _send(dump: Dump, skipped: int, stream: IO[bytes]) -> int:
    """Writes the head and the pages of the articles but the first; returns their number."""
    sent = 0
    with (
        stream,
        Progress(total=dump.size_bytes, unit="B", description="extract") as progress,
    ):
        stream.write(dump.head)
        for number, page in enumerate(dump.articles()):
            if number >= skipped:
                stream.write(page)
                sent += 1
            progress.advance(dump.position - progress.done)
        progress.advance(dump.position - progress.done)
    return sent


def _last_line(log: Path) -> str:
    lines = log.read_bytes()[-_LINE_BYTES:].decode(errors="replace").split("\n")
    return printable(next((line for line in reversed(lines) if line.strip()), "no message"))


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
