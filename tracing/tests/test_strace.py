"""strace's lines, made by hand, as rows; `test_whole` has those of a program.

Long because one table has all that moves an offset.
"""

import os
import subprocess
import sys

import pandas as pd
import pytest

from tracing import backends, loaded, strace
from tracing.calls import ASYNCHRONOUS_CALLS, DESCRIPTOR_CALLS, KIND_OF
from tracing.tests.conftest import require


def test_names_begin_in_the_folder_that_a_process_is_in():
    (renamed, removed), parser = calls(
        "7 fchdir(3</d/deep>) = 0", f'7 chdir("none") {NO_FILE}',
        '7 rename("old", "new") = 0',
        f"7 {FORK}) = 8",
        '7 chdir("..") = 0',
        '8 unlink("gone") = 0',
    )  # fmt: skip
    assert (renamed["path"], renamed["new_path"]) == ("/d/deep/old", "/d/deep/new")
    assert removed["path"] == "/d/deep/gone"
    assert str(parser.losses) == "nothing was lost"
    for shared, own, path in (
        ("FS", "FILES", "/d/deep/x"), ("FS", "FS", "/d/x"), ("FS", "NEWNS", "/d/x"),
        ("FILES", "FILES", "/d/x"),
    ):  # fmt: skip
        [removed], _ = calls(
            f"7 clone(flags=CLONE_{shared}|SIGCHLD) = 8", f"8 unshare(CLONE_{own}) = 0",
            '8 chdir("deep") = 0', '7 unlink("x") = 0',
        )  # fmt: skip
        assert removed["path"] == path
    [made, removed], _ = calls(
        '7 chroot("r") = 0', '7 chroot("/") = 0', '7 mkdir("/../x", 0777) = 0',
        '7 chdir("/y") = 0', '7 unlink("z") = 0',
    )  # fmt: skip
    assert (made["path"], removed["path"]) == ("/d/r/x", "/d/r/y/z")
    for making, tid in ((f"7 {FORK}) = 8", 8), ("7 unshare(CLONE_FS) = 0", 7)):
        (_, removed), _ = calls(
            '7 chroot("r") = 0', making, f'{tid} rename("/../r", "/x") = 0',
            f'{tid} unlink("/y") = 0',
        )  # fmt: skip
        assert removed["path"] == "/d/r/y"
    found, _ = calls(
        f"7 {FORK.replace('SIG', 'CLONE_FS|SIG')}) = 8", f"7 {FORK}) = 9", '7 chdir("/e") = 0',
        '9 chroot("/e") = 0', '7 renameat2(3</>, "e", 3</>, "f", RENAME_EXCHANGE) = 0',
        '8 unlink("x") = 0', '9 unlink("/x") = 0',
    )  # fmt: skip
    assert [row["path"] for row in found] == ["/e", "/f/x", "/f/x"]
    found, _ = calls(
        '7 unlinkat(AT_FDCWD</e>, ".//x", 0) = 0', '7 unlinkat(3</f>, "x", 0) = 0',
        '7 unlink("x") = 0', '7 rename("/e", "/g") = 0', '7 unlink("x") = 0',
    )  # fmt: skip
    assert [row["path"] for row in found] == ["/e/x", "/f/x", "/e/x", "/e", "/g/x"]
    (_, failed), _ = calls(
        '7 chdir("gone") = 0', '7 rmdir("/d/gone") = 0', f'7 rename("a", "b") {NO_FILE}'
    )
    assert (failed["path"], failed["new_path"]) == ("/d/gone/a", "/d/gone/b")
    parser = strace.Parser(folder="/", process_of_thread={7: 7}, folder_of={7: "/before"})
    [(_, removed)] = parser.parse(['7 1.000000001 unlink("x") = 0 <0.000000001>\n'])
    assert removed["path"] == "/before/x"


def test_who_executed_and_who_is_a_stranger_is_told():
    lines = [
        f"7 1.000000001 {MAKES} = 17 <0.000000001>\n",
        '17 2.000000001 execve("/bin/cat", ["cat"], 0x7f <unfinished ...>\n',
        "7 3.000000001 +++ superseded by execve in pid 17 +++\n",
        "7 3.000000002 <... execve resumed>) = -1 (errno 18446744073709551359) <0.000000001>\n",
        '99 3.000000003 chdir("/") = 0 <0.000000001>\n',
        "99 4.000000001 +++ exited with 0 +++\n",
    ]
    parser = strace.Parser(births=strace.births_in(lines), folder="/d")
    events = [(row["pid"], row["tid"], row["event"]) for _, row in parser.parse(lines)]
    assert events == [(7, 17, "thread"), (7, 7, "exec"), (99, 99, "exit")]
    assert str(parser.losses) == "1 threads or processes whose making was not seen"


@pytest.mark.parametrize("end", ["exited with 0", "killed by SIGSEGV (core dumped)"])
def test_who_has_the_number_of_a_process_that_ended_has_nothing_of_it(end):
    lines = [
        '7 chdir("/d") = 0', "7 vfork( <unfinished ...>", OPEN.replace("7 ", "8 ", 1),
        '8 chdir("deep") = 0', f"8 +++ {end} +++", "7 <... vfork resumed>) = 8",
        '8 read(3</d/x>, "", 9) = 9', '8 unlink("y") = 0',
    ]  # fmt: skip
    assert calls(*lines[:-2])[1].losses.strangers == 0
    (_, read, removed), parser = calls(*lines)
    assert (read["opening"], removed["path"], parser.losses.strangers) == (None, "/d/y", 1)


@pytest.mark.parametrize("flags, event, pid", [("SIGCHLD", "process", 4012),
                                               ("CLONE_THREAD", "thread", 4001)])  # fmt: skip
def test_what_a_container_makes_has_the_number_of_the_machine(flags, event, pid):
    """In the container it has another one, which is that of a process of the machine too."""
    line = (
        f"4001 5.000000000 clone(flags={flags}) = 12 /* 4012 in strace's PID NS */ <0.000000100>\n"
    )
    parser = strace.Parser(births=strace.births_in([line]), folder="/")
    [(table, row)] = parser.parse([line])
    assert (table, row["event"], row["parent_pid"]) == ("process_events", event, 4001)
    assert (row["pid"], row["tid"]) == (pid, 4012)


def test_calls_that_threads_interleave_are_joined():
    lines = [
        '11 1.000000001 pread64(3</d/part-0>, "", 8, 16 <unfinished ...>\n',
        "12 1.000000002 close(4</d/x>) = 0 <0.000000001>\n",
        "11 1.000000009 <... pread64 resumed>) = 8 <0.000000007>\n",
        '12 1.000000010 read(4</d/x>, "", 8 <unfinished ...>\n',
    ]
    parser = strace.Parser(process_of_thread={11: 10, 12: 10}, folder="/d")
    close, read = (row for _, row in parser.parse(lines))
    assert close["operation"] == "close"
    assert (read["realtime_ns"], read["latency_ns"], read["offset_bytes"]) == (10**9 + 1, 7, 16)
    assert (read["pid"], read["tid"]) == (10, 11)
    assert parser.losses.calls_cut_short == 1


@pytest.mark.parametrize("seen_as", ["3</d/one/x>", "4</d/two/x>"])
def test_a_call_during_a_renaming_has_the_name_before_or_after_it(seen_as):
    """A kernel that is busy does it at any time between its two lines."""
    lines = [
        OPEN.replace("x", "one/x").replace("7 ", "7 0.000000001 ", 1) + " <0.000000100>\n",
        '8 1.000000000 rename("one", "two" <unfinished ...>\n',
        f'7 1.000000100 write({seen_as}, "", 5 <unfinished ...>\n',
        "8 1.000000200 <... rename resumed>) = 0 <0.000000200>\n",
        "7 1.000000300 <... write resumed>) = 5 <0.000000200>\n",
        '7 2.000000000 read(3</d/two/x>, "", 9) = 9 <0.000000100>\n',
        '7 3.000000000 rename("/d/two", "/d/three") = 0 <0.000000100>\n',
    ]
    parser = strace.Parser(folder="/d", process_of_thread={7: 7, 8: 7})
    found = pd.DataFrame([row for _, row in parser.parse(lines)]).assign(error=None)
    found["monotonic_ns"] = found["realtime_ns"]
    found = found.sort_values("monotonic_ns", ignore_index=True)
    assert list(found["kind"]) == ["open", "rename", "write", "read", "rename"]
    final_paths = [f"/d/three{end}" for end in ("/x", "", "/x", "/x", "")]
    assert list(loaded._final_paths(found)) == final_paths
    assert found.get("offset_bytes", pd.Series()).isna().all()  # which file moved is not known


def test_calls_whose_path_cannot_be_read():
    failed = "= -1 EFAULT (Bad address)"
    (opened, renamed), parser = calls(
        f"7 openat(AT_FDCWD</d>, NULL, O_RDONLY) {failed}",
        f'7 rename("a", NULL) {failed}',
        "7 chdir(0x7ffd0000) = 0",
        '7 execve(0x7ffd0000, ["cat"], 0x7ffd0 /* 10 vars */) = 0',
    )
    assert (opened["path"], opened["error"]) == ("unknown:", "EFAULT")
    assert (renamed["path"], renamed["new_path"]) == ("/d/a", "unknown:")
    assert parser.losses.damaged_lines == 2


THREAD = """
import os, pathlib, threading
def work():
    for _ in range(10_000):
        os.getppid()
    status = pathlib.Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    print(status.partition("\\nvoluntary_ctxt_switches:")[2].split()[0])
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


def test_calls_that_are_not_traced_do_not_stop_a_thread(tmp_path):
    """A stopped thread gives up its processor, which the kernel counts."""
    require(backends.STRACE)
    options = strace.options(tmp_path / "calls")
    [traced] = [option for option in options if option.startswith("trace=")]
    first_calls = ",".join(strace.FIRST_CALLS_OF_A_THREAD)
    assert traced.endswith(first_calls)
    options[options.index(traced)] = f"trace={first_calls}"  # this interpreter makes others, too
    command = [*options, "--", sys.executable, "-c", THREAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000


def test_straces_lines_are_understood_and_hold_no_data(tmp_path):
    """Also those of processes that have other numbers than the machine's."""
    require(backends.STRACE)
    lines, words = tmp_path / "lines", ["unshare", "--pid", "--fork"] if os.geteuid() == 0 else []
    script = "echo secret > /dev/null; (kill -SEGV $(sh -c 'echo $PPID')); true"
    subprocess.run([*strace.options(lines), "--", *words, "sh", "-c", script], check=True)
    found = lines.read_text().splitlines(keepends=True)
    parser = strace.Parser(births=strace.births_in(found), folder="/")
    events = [row["event"] for table, row in parser.parse(found) if table == "process_events"]
    assert str(parser.losses) == "nothing was lost"
    assert events.count("process") == events.count("exit") - 1 > 1
    assert "write(1</dev/null>" in "".join(found) and "secret" not in "".join(found)


def test_every_call_of_which_something_is_made_is_traced(tmp_path):
    [traced] = [word for word in strace.options(tmp_path) if word.startswith("trace=")]
    made = {*KIND_OF, *DESCRIPTOR_CALLS, *ASYNCHRONOUS_CALLS, *strace.PROCESS_CALLS}
    assert made <= set(traced.removeprefix("trace=").replace("?", "").split(","))


def calls(*texts: str) -> tuple[list[dict], strace.Parser]:
    """The rows of file_ops of lines "TID TEXT", a second apart."""
    lines = []
    for second, text in enumerate(texts):
        tid, _, call = text.partition(" ")
        duration = (
            ""
            if call.endswith(("...>", "= ?")) or call.startswith(("+++", "---"))
            else " <0.000000100>"
        )
        lines.append(f"{tid} {second}.000000000 {call}{duration}\n")
    parser = strace.Parser(births=strace.births_in(lines), folder="/d")
    return [row for table, row in parser.parse(lines) if table == "file_ops"], parser


OPEN = '7 openat(AT_FDCWD</d>, "x", O_RDONLY) = 3</d/x>'
NO_FILE = "= -1 ENOENT (No such file or directory)"
FORK = "clone(child_stack=NULL, flags=CLONE_CHILD_SETTID|SIGCHLD, child_tidptr=0x7f8f51b2d310"


@pytest.mark.parametrize(
    "line",
    [
        "gibberish\n", "11 1.000000001 read(3</d/x>, ", "11 <... clone\n",
        "7 1.000000000 read(3</d/x>,  <unfinished .",
        "11 1.000000001 <... read resumed>) = 4 <0.000000100>\n",
        *(f"7 1.000000000 {call} <0.000000100>\n"
          for call in ("read(3</d/x>) = 4", "close_range(3) = 0", 'unlink("/d/\\") = 0')),
    ],
)  # fmt: skip
def test_damaged_lines_are_counted(line):
    parser = strace.Parser(births=strace.births_in([line]), folder="/d")
    assert list(parser.parse([line])) == []
    assert parser.losses.damaged_lines == 1


@pytest.mark.parametrize(
    "text",
    [
        "7 +++ superseded by execve in pid 17 +++", "7 exit_group(0) = ?",
        '7 read(3</d/x>, "", 8) = ?', '7 open("x", O_RDONLY) = ? ERESTARTSYS (To be restarted)',
        "7 read(3</d/x>, <unfinished ...>) = ?",
        "7 read(3</d/x>,  <unfinished ...>", "7 read(3</d/x>, ? <unavailable>) = ?",
        "7 --- SIGRT_1 {si_signo=SIGRT_1, si_code=SI_USER, si_pid=1, si_uid=0} ---",
        "7 --- stopped by SIGSTOP ---",
    ],
)  # fmt: skip
def test_what_an_exit_or_a_kill_cuts_short_is_no_damage(text):
    rows, parser = calls(text)
    assert parser.losses.damaged_lines == 0
    assert all(row["size_bytes"] == 0 for row in rows)


def test_a_folder_above_is_that_of_a_links_target(tmp_path):
    (tmp_path / "a" / "real" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("a/real/deep")

    def of_a_container(path: str) -> str:
        return path.replace(tmp_path.name, f"./{tmp_path.name}")

    for host_path, name, path in (
        (str, "link/../x", "a/real/x"), (of_a_container, "a/../x", "x"),
        *((of_a_container, name, name) for name in ("link/../x", "link/../../x")),
    ):  # fmt: skip
        line = f'7 1.000000001 unlink("{name}") = 0 <0.000000001>\n'
        [(_, row)] = strace.Parser(folder=str(tmp_path), host_path=host_path).parse([line])
        assert row["path"] == f"{tmp_path}/{path}"


OPENED, READ = [OPEN, '7 read(3</d/x>, "", 5) = 5'], '7 read(3</d/x>, ""..., 9) = 9'
FROM_BEGIN = [(7, "open", None), (7, "read", 0)]
EXECUTE = '7 execve("/bin/cat", ["cat"], 0x7ffd0 /* 10 vars */) = 0'
MAKES = "clone3({flags=CLONE_VM|CLONE_THREAD}, 88)"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # A child may move what it was born with, and nobody knows what a damaged line has moved.
        ([*OPENED, f"7 {FORK}) = 8", READ], [*FROM_BEGIN, (7, "read", None)]),
        ([*OPENED, "7 vfork( <unfinished ...>", '8 read(3</d/x>, ""..., 20) = 20',
          "7 <... vfork resumed>) = 8", READ],
         [*FROM_BEGIN, (8, "read", None), (7, "read", None)]),
        ([*OPENED, "7 read(3</d/x>, damaged", READ], [*FROM_BEGIN, (7, "read", None)]),
        ([f"7 {FORK}) = 8", OPEN.replace("7", "8", 1), "7 read(3</d/x>, damaged",
          READ.replace("7", "8", 1)], [(8, "open", None), (8, "read", None)]),
        # So may somebody else what was open before.
        (["7 lseek(3</d/x>, 5, SEEK_SET) = 5", READ], [(7, "seek", 5), (7, "read", None)]),
        ([*OPENED, f"7 {MAKES} = 17", "17 lseek(3</d/x>, 2, SEEK_SET) = 2", READ],
         [*FROM_BEGIN, (7, "seek", 2), (7, "read", None)]),
        # A program keeps its standard input. A shell looks for it, and keeps all its files.
        ([OPEN, "7 dup2(3</d/x>, 0</dev/null>) = 0</d/x>",
          '7 execve("/none/cat", ["cat"], 0x7ffd0 /* 10 vars */) = -1 ENOENT (No such file)',
          '7 pread64(3</d/x>, "", 1, 77) = 1', '7 read(3</d/x>, "", 0) = 0',
          '7 execve("/bin/cat", ["cat"], 0x7ffd0 /* 10 vars */) = 0',
          *['7 read(0</d/x>, ""..., 10) = 10'] * 2, READ],
         [(7, "open", None), *((7, "read", offset) for offset in (77, 0, 0, 10, 20))]),
        # What an exec closes, and what it keeps.
        ([*OPENED, "7 fcntl(3</d/x>, F_SETFD, FD_CLOEXEC) = 0", "7 fcntl(3</d/x>, F_SETFD, 0) = 0",
          "7 dup3(3</d/x>, 9, O_CLOEXEC) = 9</d/x>", EXECUTE, READ],
         [*FROM_BEGIN, (7, "read", 5)]),
        *(([*OPENED, *closing, EXECUTE, READ], [*FROM_BEGIN, (7, "read", None)]) for closing in (
            ["7 fcntl(3</d/x>, F_SETFD, FD_CLOEXEC) = 0",
             "7 dup3(3</d/x>, 9, O_CLOEXEC) = 9</d/x>"],
            ["7 fcntl(3</d/x>, F_DUPFD_CLOEXEC, 9) = 9</d/x>",
             "7 dup3(9</d/x>, 3</d/x>, O_CLOEXEC) = 3</d/x>"],
            ["7 close_range(3, 9, CLOSE_RANGE_CLOEXEC) = 0"],
        )),
        *(([OPENED[0].replace("O_RDONLY", f"O_RDONLY|{flag}"), OPENED[1], EXECUTE, READ],
           [*FROM_BEGIN, (7, "read", at)]) for flag, at in (("O_CLOEXEC", None), ("O_DIRECT", 5))),
        # A new file under the number of one that an exec would have closed.
        ([OPENED[0].replace("O_RDONLY", "O_RDONLY|O_CLOEXEC"), "7 close(3</d/x>) = 0", *OPENED,
          EXECUTE, READ], [(7, "open", None), (7, "close", None), *FROM_BEGIN, (7, "read", 5)]),
        ([*OPENED, "7 lseek(3</d/x>, -1, SEEK_SET) = -1 EINVAL (Invalid argument)", READ],
         [*FROM_BEGIN, (7, "seek", None), (7, "read", 5)]),
        ([*OPENED, "7 close_range(3, 9, CLOSE_RANGE_UNSHARE|CLOSE_RANGE_CLOEXEC) = 0", READ],
         [*FROM_BEGIN, (7, "read", 5)]),
        ([*OPENED, "7 close_range(3, 9, 0) = 0", READ], [*FROM_BEGIN, (7, "read", None)]),
        *(([*OPENED, f"7 close_range({which}, 0) = 0", READ], [*FROM_BEGIN, (7, "read", at)])
          for which, at in (("0, 2", 5), ("4, 9", 5), ("0, 3", None), ("3, 4294967295", None))),
        # Copies move together, and each is closed by exec as its making says.
        *(([*OPENED, f"7 {making} = 9</d/x>", EXECUTE, '7 read(9</d/x>, "", 4) = 4', READ],
           [*FROM_BEGIN, (7, "read", 5 if keeps else None), (7, "read", 9 if keeps else None)])
          for making, keeps in (
              ("dup(3</d/x>)", True), ("dup2(3</d/x>, 9)", True), ("dup3(3</d/x>, 9, 0)", True),
              ("dup3(3</d/x>, 9, O_CLOEXEC)", False), ("fcntl(3</d/x>, F_DUPFD, 4)", True),
              ("fcntl(3</d/x>, F_DUPFD_CLOEXEC, 4)", False))),
        # Other commands of fcntl, and calls that failed, change nothing.
        *(([*OPENED, f"7 {call}", EXECUTE, READ, '7 write(3</d/x>, "", 4) = 4'],
           [*FROM_BEGIN, (7, "read", 5), (7, "write", 14)]) for call in (
            "fcntl(3</d/x>, F_GETFD) = 0x1 (flags FD_CLOEXEC)",
            "read(9, 0x7ffd0000, 9) = -1 EBADF (Bad file descriptor)",
            "sendfile(3</d/x>, 9, NULL, 9) = -1 EBADF (Bad file descriptor)",
            "fcntl(3</d/x>, F_SETFD, FD_CLOEXEC) = -1 EBADF (Bad file descriptor)",
            "fcntl(3</d/x>, F_GETFL) = 0x8402 (flags O_RDWR|O_APPEND)")),
        ([*OPENED, "7 fcntl(3</d/x>, F_NONE_SUCH, 7) = 0", '7 read(0</d/x>, "", 9) = 9'],
         [*FROM_BEGIN, (7, "read", None)]),
        # A copy begins at its offsets, or at the positions.
        ([*OPENED, '7 creat("y", 0644) = 4</d/y>', "7 sendfile(4</d/y>, 3</d/x>, NULL, 9) = 9",
          "7 copy_file_range(3</d/x>, [2], 4</d/y>, NULL, 9, 0) = 9",
          "7 splice(3</d/x>, NULL, 9<pipe:[7]>, NULL, 9, 0) = 9", READ],
         [*FROM_BEGIN, (7, "create", None), (7, "read", 5), (7, "write", 0), (7, "read", 2),
          (7, "write", 9), (7, "read", 14), (7, "write", None), (7, "read", 23)]),
        # Where a file ends nobody knows: one call appends to it, or all do.
        ([*OPENED, '7 pwritev2(3</d/x>, [], 1, -1, RWF_APPEND) = 4', READ],
         [*FROM_BEGIN, (7, "write", None), (7, "read", None)]),
        ([*OPENED, '7 pwritev2(3</d/x>, [], 1, 0, RWF_APPEND) = 4', READ],
         [*FROM_BEGIN, (7, "write", None), (7, "read", 5)]),
        (['7 pwritev2(9</d/y>, [], 1, -1, RWF_APPEND) = 4'], [(7, "write", None)]),
        ([*OPENED, '7 preadv2(3</d/x>, [], 1, -1, RWF_APPEND) = 4', READ],
         [*FROM_BEGIN, (7, "read", None), (7, "read", None)]),
        *(([OPENED[0].replace("O_RDONLY", before), OPENED[1],
            f"7 fcntl(3</d/x>, F_SETFL, {now}) = 0", f'7 write(3</d/x>, "", 4) = {result}', READ],
           [*FROM_BEGIN, (7, "write", wrote), (7, "read", at)])
          for before, now, result, wrote, at in (
              ("O_RDWR", "O_RDWR|O_APPEND", "4", None, None),
              ("O_RDWR", "O_RDWR|O_APPEND", "-1 ENOSPC (No space left on device)", None, 5),
              ("O_RDWR|O_APPEND", "O_RDWR", "4", 5, 9))),
        # A thread of a thread belongs to the process.
        ([f"7 {MAKES} = 17", f"17 {MAKES} = 18", '18 read(3</d/x>, "", 9) = 9'],
         [(7, "read", None)]),
        (['7 creat("/d/new", 0644) = 3</d/new>', '7 write(3</d/new>, "", 5) = 5'],
         [(7, "create", None), (7, "write", 0)]),
        # In a container the call returns another number than strace's.
        ([*OPENED, f"7 {MAKES} = 2 /* 17 in strace's PID NS */",
          '17 read(3</d/x>, "", 9) = 9', READ],
         [*FROM_BEGIN, (7, "read", None), (7, "read", None)]),
        # The number of a thread becomes that of a process, and the other way round.
        ([f"7 {MAKES} = 17", *OPENED, '17 read(3</d/x>, "", 9) = 9', "17 +++ exited with 0 +++",
          f"7 {FORK}) = 17", '17 read(3</d/x>, "", 9) = 9', "17 +++ exited with 0 +++"],
         [*FROM_BEGIN, (7, "read", None), (17, "read", None)]),
        (['7 chdir("/d") = 0', "7 vfork( <unfinished ...>", OPEN.replace("7 ", "8 ", 1),
          '8 read(3</d/x>, "", 9) = 9', "8 +++ exited with 0 +++",
          "7 <... vfork resumed>) = 8", f"7 {MAKES} = 8",
          '8 read(3</d/x>, "", 9) = 9'],
         [(8, "open", None), (8, "read", 0), (7, "read", None)]),
        # A process may have the descriptors of its maker, not copies of them.
        *(([f"7 clone(child_stack=0x7f, flags={shared}|SIGCHLD) = 8", f"8 {call} = 0",
            OPEN.replace("7 ", "8 ", 1), READ, READ.replace("7 ", "8 ", 1)],
           [(8, "open", None), (7, "read", at), (8, "read", None)])
          for shared, call, at in (
              ("CLONE_FILES", "unshare(CLONE_FS)", 0), ("CLONE_FS", 'chdir("/")', None),
              ("CLONE_FILES", "unshare(CLONE_FILES)", None))),
        # Who has a copy of a descriptor can make the file append.
        ([*OPENED, f"7 {FORK}) = 8", "8 fcntl(3</d/x>, F_SETFL, O_RDWR|O_APPEND) = 0",
          '7 pwrite64(3</d/x>, "", 5, 0) = 5'], [*FROM_BEGIN, (7, "write", None)]),
        # So can, and move it, who was given one in a message.
        *(([*OPENED, f"7 {call}", READ], [*FROM_BEGIN, (7, kind, offset), (7, "read", at)])
          for call, kind, offset, at in (
              ('read(9</d/x>, "", 4) = 4', "read", None, None),
              ('read(9</d/y>, "", 4) = 4', "read", None, 5),
              ('pread64(9</d/x>, "", 4, 0) = 4', "read", 0, 5),
              ('pwrite64(9</d/x>, "", 4, 0) = 4', "write", None, 5),
              ('pwrite64(3</d/x>, "", 4, 0) = 4', "write", 0, 5),
              ("fsync(9</d/x>) = 0", "sync", None, 5))),
        ([*OPENED, "7 fcntl(9</d/x>, F_SETFL, O_RDWR|O_APPEND) = 0",
          '7 pwrite64(3</d/x>, "", 5, 0) = 5'], [*FROM_BEGIN, (7, "write", None)]),
        # Another thread than the first executes a program, and takes the number of the first.
        ([*OPENED, f"7 {MAKES} = 17", '17 execve("/bin/cat", ["cat"], 0x7f <unfinished ...>',
          "7 +++ superseded by execve in pid 17 +++", "7 <... execve resumed>) = -1 E2BIG (L)",
          READ, f"7 {FORK}) = 17", '17 read(3</d/x>, "", 9) = 9'],
         [*FROM_BEGIN, (7, "read", 5), (17, "read", None)]),
        ([*OPENED, f"7 {MAKES} = 17", '17 execve("/bin/cat", ["cat"], 0x7f <pid changed to 7 ...>',
          "7 +++ superseded by execve in pid 17 +++", "7 <... execve resumed>) = -1", READ],
         [*FROM_BEGIN, (7, "read", 5)]),
        # A renamed name is not the beginning of another one, but it is a folder's.
        *(([f'7 openat(AT_FDCWD</d>, "{before}", O_RDONLY) = 3</d/{before}>',
            f'7 read(3</d/{before}>, "", 5) = 5', f'7 rename("p", "q") {result}',
            f'7 read(3</d/{after}>, "", 9) = 9'],
           [*FROM_BEGIN, (7, "rename", None), (7, "read", 5)])
          for before, after, result in (
              ("p1", "p1", "= 0"), ("p/x", "q/x", "= 0"), ("p", "q", "= 0"), ("a/p", "a/p", "= 0"),
              ("p", "p", "= -1 EACCES (Permission denied)"))),
        ([*OPENED, OPEN.replace("x", "y").replace("3<", "4<"),
          '7 renameat2(AT_FDCWD</d>, "x", AT_FDCWD</d>, "y", RENAME_EXCHANGE) = 0',
          '7 read(4</d/x>, "", 4) = 4', '7 read(3</d/y>, "", 4) = 4'],
         [*FROM_BEGIN, (7, "open", None), (7, "exchange", None), (7, "read", 0), (7, "read", 5)]),
        ([*OPENED, '7 unlink("x") = 0', READ.replace("x>", "x>(deleted)")],
         [*FROM_BEGIN, (7, "remove", None), (7, "read", 5)]),
        # Its name was that of a link.
        (['7 open("link", O_RDONLY) = 3</d/x>', OPENED[1], READ], [*FROM_BEGIN, (7, "read", 5)]),
        # Nobody knows whose descriptors a thread has whose making was not seen.
        ([*OPENED, '99 chdir("/") = 0', READ], [*FROM_BEGIN, (7, "read", None)]),
        ([*OPENED, '99 read(3</d/x>, "", 9) = 9', OPEN, READ, f'7 open("y", O_RDONLY) {NO_FILE}'],
         [*FROM_BEGIN, (99, "read", None), (7, "open", None), (7, "read", None),
          (7, "open", None)]),
    ],
)  # fmt: skip
def test_offsets_are_those_that_nobody_else_moves(texts, expected):
    found, _ = calls(*texts)
    assert [(row["pid"], row["kind"], row.get("offset_bytes")) for row in found] == expected


def test_bytes_asked_for_and_those_that_were_read_or_mapped():
    mapping = "7 mmap(NULL, 9000, PROT_READ, MAP_PRIVATE, 3</d/x>, 0x1000) ="
    found, _ = calls(OPEN, f"{mapping} 0x7f8f51b2d000", f"{mapping} -1 EACCES (Permission denied)",
                     '7 read(3</d/x>, "", 20) = 9', "7 preadv(3</d/x>, [], 1, 16) = 8",
                     '7 pread64(3</d/x>, "", 30, 7) = 8',
                     "7 readv(3</d/x>, [], 1) = 4", "7 recvmsg(9<UNIX:[5]>, {}, 0) = 6",
                     "7 sendmsg(9<UNIX:[5]>, {}, 0) = 7")  # fmt: skip
    columns = ("kind", "size_bytes", "requested_bytes", "offset_bytes", "error")
    assert [tuple(row.get(column) for column in columns) for row in found[1:]] == [
        ("map", 9000, 9000, 4096, None), ("map", 0, 9000, 4096, "EACCES"),
        ("read", 9, 20, 0, None), ("read", 8, None, 16, None), ("read", 8, 30, 7, None),
        ("read", 4, None, 9, None), ("receive", 6, None, None, None),
        ("send", 7, None, None, None),
    ]  # fmt: skip


def test_rings_of_io_uring_and_libaio_are_told_by_process():
    _, parser = calls(
        "7 io_setup(4, [0x7f8f51b2d310]) = 0",
        "7 io_uring_setup(64, {flags=0}) = 4<anon_inode:[io_uring]>",
        "8 io_uring_setup(64, {flags=0}) = 4<anon_inode:[io_uring]>",
        "9 io_uring_setup(64, 0x7ffd0000) = -1 EPERM (Operation not permitted)",
    )
    assert parser.losses.asynchronous_processes == 2
    assert "2 processes use libaio or io_uring: what is read" in str(parser.losses)


def test_a_thread_is_told_from_a_process_after_a_making_that_failed_or_never_returned():
    threads = "flags=CLONE_VM|CLONE_FILES|CLONE_THREAD"
    lines = [
        f"7 1.000000000 clone3({{{threads}}} <unfinished ...>\n",
        "7 2.000000000 <... clone3 resumed>, 88) = -1 EAGAIN (Unavailable) <0.000000100>\n",
        "7 3.000000000 fork() = 8 <0.000000100>\n",
        f"7 4.000000000 clone3({{{threads}}} <unfinished ...>\n",
        "9 5.000000000 +++ exited with 0 +++\n",
        "7 6.000000000 <... clone3 resumed>, 88) = 9 <0.000000100>\n",
        f"8 7.000000000 clone3({{{threads}}} <unfinished ...>\n",
        f"8 8.000000000 {FORK}) = 10 <0.000000100>\n",
        '7 9.000000000 open("/d/clone(1) = 77", O_RDONLY) = 77</d/clone(1) = 77> <0.000000100>\n',
    ]
    births = strace.births_in(lines)
    is_thread = {child: birth.is_thread for child, [birth] in births.items()}
    assert is_thread == {8: False, 9: True, 10: False}
    parsed = list(strace.Parser(births=births, folder="/d").parse(lines))
    [(_, exited)] = [each for each in parsed if each[1].get("event") == "exit"]
    assert (exited["pid"], exited["tid"]) == (7, 9)
