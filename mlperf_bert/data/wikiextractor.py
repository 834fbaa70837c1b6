"""A Wikipedia dump becomes text/??/wiki_??: the entry point of the image of Dockerfile.extractor.

WikiExtractor.py lies beside it and runs in this process, as the reference runs it, except for the
date, which is always the same. Alone it would not tell that a dump is cut off, or that one of its
processes was killed. For Python 3.7, so it imports nothing of this package.
"""

import bz2
import multiprocessing
import os
import re
import runpy
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

USAGE = 'docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/data" IMAGE DUMP'
PROGRAM = Path(__file__).with_name("WikiExtractor.py")
TEXT, PARTIAL = Path("text"), Path("text.partial")
DAY = time.strptime("2020-01-20", "%Y-%m-%d")
"""Some day after the dump of 2020-01-01; the day of the reference's run is not published."""
# WikiExtractor would look forever for a head's missing end. Stubs have texts without content.
HEAD = re.compile(r"<dbname>enwiki</dbname>.*</siteinfo>.*<text[^>]*[^/]>", re.DOTALL)
HEAD_CHARACTERS = 1 << 20

started = []  # type: list[multiprocessing.Process]


class Process(multiprocessing.Process):
    """One of WikiExtractor's processes."""

    def start(self):
        """Starts it, and keeps it for `require_alive`."""
        super().start()
        started.append(self)
        require_alive()  # it may have ended before it was kept


def require_alive(*_):
    """Ends the extraction if one of its processes has failed: the others would wait for it."""
    failed = [process.exitcode for process in started if process.exitcode]
    if failed:
        why = "perhaps for lack of memory" if failed[0] < 0 else "see above"
        raise ValueError(f"a process of WikiExtractor ended with {failed[0]}, {why}")


def lines(dump):
    """The lines of a dump, which may be packed; raises ValueError for one that is not whole."""
    missing = f"{dump}: cut off: </mediawiki> is missing; fetch it again"
    try:
        with dump.open("rb") as file:
            is_packed = file.read(3) == b"BZh"
            file.seek(max(0, dump.stat().st_size - 1024))
            has_end = file.read().rstrip().endswith(b"</mediawiki>")
        opened = bz2.open if is_packed else open
        with opened(str(dump), "rt", encoding="utf-8") as file:
            if not HEAD.search(file.read(HEAD_CHARACTERS)):
                raise ValueError(f"{dump}: does not begin as pages-articles of enwiki; fetch that")
            if not is_packed and not has_end:  # told before hours of work
                raise ValueError(missing)
            file.seek(0)
            last = ""
            for line in file:
                yield line
                last = last if line.isspace() else line
    except (EOFError, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None):
            raise  # an error of the disk
        raise ValueError(f"{dump}: damaged or cut off ({error}); fetch it again") from error
    # Python takes a damaged stream behind another for what may follow an archive, and ends there.
    if not last.rstrip().endswith("</mediawiki>"):
        raise ValueError(missing)


def extract(dump):
    """Runs WikiExtractor on a dump, into PARTIAL."""
    strftime = time.strftime
    time.strftime = lambda form, *moment: strftime(form, *(moment or (DAY,)))
    multiprocessing.Process = Process  # type: ignore[misc]
    signal.signal(signal.SIGCHLD, require_alive)
    sys.stdin = lines(dump)
    processes = len(os.sched_getaffinity(0))
    # Quiet: a line for each article would hide the errors.
    sys.argv = [str(PROGRAM), "-", "--quiet", f"--output={PARTIAL}", f"--processes={processes}"]
    runpy.run_path(str(PROGRAM), run_name="__main__")
    require_alive()
    if not any(path.stat().st_size for path in PARTIAL.glob("??/wiki_??")):
        raise ValueError(f"{dump}: no article; fetch pages-articles of enwiki")


def main():
    """Writes TEXT, whole or not at all."""
    for number in (signal.SIGINT, signal.SIGTERM):  # process 1 of a container ignores them
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        raise ValueError(f"give one dump, .xml or .xml.bz2: {USAGE}")
    dump = Path(sys.argv[1])
    if not dump.is_file():
        raise ValueError(f"{dump}: no such file below {Path.cwd()}, where --volume mounts a folder")
    if TEXT.is_symlink() or TEXT.exists():
        raise ValueError(f"{TEXT}: is there; move it away")
    try:
        multiprocessing.Lock()
    except OSError as error:
        why = "its processes need semaphores there; leave out a --mount or --tmpfs of /dev/shm"
        raise ValueError(f"/dev/shm: {error.strerror}; {why}") from error
    next(lines(dump), None)  # tells a wrong head, or a missing end, before anything is made
    if PARTIAL.exists():
        why = "of an extraction that still runs, or was killed; remove it if none runs"
        raise ValueError(f"{PARTIAL}: {why}")
    try:
        PARTIAL.mkdir()
    except OSError as error:
        who = f"user {os.getuid()} must be able to write into the mounted folder"
        raise ValueError(f"{PARTIAL}: {error.strerror}; {who}") from error
    try:
        extract(dump)
        PARTIAL.replace(TEXT)
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for process in started:
            process.kill()
            process.join()
        shutil.rmtree(str(PARTIAL), ignore_errors=True)
    print(f"{TEXT}: {len(list(TEXT.glob('??/wiki_??'))):,} files")
    return 0


if __name__ == "__main__":
    code = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"extract: {where}{error.strerror or error}", file=sys.stderr)
    except ValueError as error:
        print(f"extract: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # multiprocessing would wait for killed processes to read what they were sent
