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
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import IO

from mlperf_bert.data import provenance
from mlperf_bert.data.articles import in_files
from mlperf_bert.data.provenance import printed_by
from mlperf_bert.data.wiki_dump import Dump
from mlperf_bert.files.json_text import read_record, write_record
from mlperf_bert.files.locks import held
from mlperf_bert.files.whole import read_regular_file, written_beside
from mlperf_bert.messages import Progress, printable

REPOSITORY = "https://github.com/attardi/wikiextractor"
COMMIT = "3162bb6c3c9ebd2d15be507aa11d6fa818a454ac"
PROGRAM = "WikiExtractor.py"
SHA256 = "36c067293e68c2d04d886bd410cc7529b791c6ea3cfa1c46b3e032838298471a"
PYTHONS = ("3.10", "3.9", "3.8", "3.7")
"""On which the program runs. From 3.11 on Python refuses its two regular expressions that have
"(?i)" in the middle."""
RECORD_NAME = "extraction.json"
LOG_NAME = "wikiextractor.log"
_FILES_PER_FOLDER = 100
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_LINE_BYTES = 2000
_GET_THE_PROGRAM = f"or get {PROGRAM} of {REPOSITORY} at {COMMIT} and give --wikiextractor=PATH"
_RUNNER = Path(__file__).with_name("wikiextractor.py")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """The content of extraction.json: what the text was made from, and how far it has come."""

    dump: str
    dump_bytes: int
    dump_sha256: str | None
    """Known at the end."""
    wiki: str | None
    today: str
    wikiextractor: str
    """The commit."""
    python: str
    files: int = 0
    articles: int = 0
    failed_articles: int = 0
    """The program has left them out; its log says why."""
    is_complete: bool = False


def extract(
    *,
    dump: Dump,
    folder: Path,
    today: datetime.date | None,
    program: Path,
    python: Path,
    num_processes: int,
) -> Record:
    """Writes the articles of a dump into `folder`/??/wiki_??, or goes on where it was interrupted.

    Args:
      today: the date that articles name as today; by default that of the interrupted extraction,
        else the clock's.

    Raises:
      ValueError: the dump is damaged, or its pages are laid out in another way; the folder is of
        another extraction; the program fails; the disk is full.
      OSError: something cannot be read or written.
    """
    before = _read(folder)
    began = before.today if before else datetime.date.today().isoformat()
    wanted = Record(
        dump=dump.path.name,
        dump_bytes=dump.size_bytes,
        dump_sha256=None,
        wiki=dump.wiki,
        today=today.isoformat() if today else began,
        wikiextractor=COMMIT,
        python=_version(python),
    )
    with held(folder, by_another="another process extracts into it"):
        try:
            record = _go_on(folder, wanted)
            command = [str(python), "-I", "-X", "utf8", "-W", "ignore", str(_RUNNER), str(program)]
            command += [record.today, "-", "--output=-", "--quiet", f"--processes={num_processes}"]
            return record if record.is_complete else _write_files(dump, folder, record, command)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise ValueError(
                f"{folder}: {error.strerror}; make room and repeat the command: it goes on"
            ) from error


def _write_files(dump: Dump, folder: Path, record: Record, command: list[str]) -> Record:
    """Writes the files that are missing; returns the complete record."""
    log = folder / LOG_NAME
    with contextlib.closing(_extracted(dump, record.articles, command, log)) as articles:
        for content in in_files(articles):
            path = folder / file_name(record.files)
            path.parent.mkdir(exist_ok=True)
            with written_beside(path) as file:
                file.writelines(content)
            record = dataclasses.replace(
                record,
                files=record.files + 1,
                articles=record.articles + len(content),
                failed_articles=record.failed_articles + content.count(b""),
            )
            # After the file: what is not recorded is extracted again, to the same bytes.
            _write(folder, record)
    if record.failed_articles == record.articles:
        raise ValueError(
            f"{log}: WikiExtractor failed on all {record.articles:,} articles: {_last_line(log)}; "
            "see the log for the cause"
        )
    record = dataclasses.replace(record, dump_sha256=dump.sha256, is_complete=True)
    provenance.note(
        folder,
        step="extraction",
        inputs=[dump.path],
        outputs=sorted(folder.glob("??/wiki_??")),
        parameters={
            name: getattr(record, name) for name in ("wiki", "today", "wikiextractor", "python")
        },
        digests={str(dump.path): f"sha256:{dump.sha256}"},
    )
    _write(folder, record)
    return record


def _read(folder: Path) -> Record | None:
    def parsed(content: dict) -> Record:
        record = provenance.fitting(Record, content)
        datetime.date.fromisoformat(record.today)
        return record

    return read_record(folder / RECORD_NAME, parsed, remedy=f"remove {folder} and extract again")


def _go_on(folder: Path, wanted: Record) -> Record:
    """The record of what is there already; raises ValueError if that is of another extraction."""
    record = _read(folder)
    if record is None and (unknown := next(folder.glob("??/wiki_*"), None)):
        raise ValueError(f"{unknown}: no {RECORD_NAME} says what it is from; give another folder")
    if record is None or not record.files:
        _write(folder, wanted)
        return wanted
    for name in ("dump", "dump_bytes", "today", "wikiextractor"):
        if (there := getattr(record, name)) != (given := getattr(wanted, name)):
            raise ValueError(
                f"{folder}: its {name} is {there}, given is {given}; give another --out_dir, or "
                "remove this one"
            )
    for path in (folder / file_name(number) for number in range(record.files)):
        if not path.is_file():
            raise ValueError(f"{path}: missing; remove {folder} and extract again")
    if not record.is_complete:
        print(
            f"{folder}: {record.files:,} files are there; the dump is read up to article "
            f"{record.articles + 1:,}, and the extraction goes on",
            file=sys.stderr,
        )
    return record


def file_name(number: int) -> str:
    """AA/wiki_00, ..., AA/wiki_99, AB/wiki_00, and so on."""
    folder, file = divmod(number, _FILES_PER_FOLDER)
    return f"{_LETTERS[folder // 26 % 26]}{_LETTERS[folder % 26]}/wiki_{file:02}"


def _write(folder: Path, record: Record) -> None:
    write_record(folder / RECORD_NAME, dataclasses.asdict(record))


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
    """WikiExtractor.py in the file or folder given, else in the cache, else fetched into it by git.

    Raises:
      ValueError: it cannot be had, or it is another version.
    """
    found = cache / PROGRAM if path is None else path / PROGRAM if path.is_dir() else path
    if path is not None and not found.exists():
        raise ValueError(f"{found}: no such file; --wikiextractor takes {PROGRAM} or its folder")
    if not found.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with written_beside(found) as file:
            file.write(_cloned())
    digest = hashlib.sha256(read_regular_file(found)).hexdigest()
    if digest != SHA256:
        raise ValueError(
            f"{found}: its SHA-256 is {digest}, that of WikiExtractor at commit {COMMIT[:8]} is "
            f"{SHA256}; give the file of this commit, or remove this one"
        )
    return found


def _cloned() -> bytes:
    print(f"fetching {REPOSITORY}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mlperf-bert-") as folder:

        def git(*words: str) -> bytes:
            command = ["git", *words]
            return subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout

        try:
            git("clone", "--quiet", "--bare", REPOSITORY, ".")
            return git("show", f"{COMMIT}:{PROGRAM}")
        except FileNotFoundError as error:
            raise ValueError(f"git: not found; install it, {_GET_THE_PROGRAM}") from error
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode(errors="replace").strip().split("\n")
            raise ValueError(
                f"git {error.cmd[1]}: {printable(lines[-1])}; try again, {_GET_THE_PROGRAM}"
            ) from error


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
