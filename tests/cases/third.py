"""Rows of ../shared/cases/third: what public reports and adversaries found on 49b5cce.

The tables of its README name the sources. They need root, strace, bpftrace, fio, Open MPI and a C
compiler, and half an hour.
"""

SHOW = "; $PY $R/show.py $O/t"


def traced(command: str, shown: str = "", *, backend: str = "", before: str = ":") -> str:
    """Traces a command, and shows the calls on files whose path matches."""
    words = f"-m tracing {backend and f'--backend={backend}'} --output=$O/t -- {command}"
    return f"{before}; $PY {words} 2>&1{SHOW + f' {shown!r} x' if shown else ''}"


def in_both(name: str, command: str, shown: str, must: list[str], not_: list[str], **more) -> dict:
    """The row by strace and by bpftrace."""
    return {
        f"{name}_{backend}": (traced(command, shown, backend=backend, **more), must, not_)
        for backend in ("strace", "bpftrace")
    }


# Expressions are searched for in the whole output.
THIRD_READ = r"read +read +0\.0 +4096 .*\n.*read +NaN +4096 .*\n.*read +(8192\.0|NaN) +4096 "
IN_DEEP = [
    r"read +read +0\.0 +4096 +NaN .*/d5/deep/data\.bin\n.*read +4096\.0 +4096 .*/d5/deep/data\.bin",
    r"rename +rename.*/d5/deep/old\.bin",
    r"remove +unlink.*/d5/deep/gone\.bin",
]
MADE = "$PY $R/07_logs/make.py"
COMPARED = "$PY -m mlperf_results.compare"
WATCHING = {
    **in_both(
        "pidns",
        "unshare --fork --pid --mount-proc $PY $R/01_pidns/shared_fd.py $O/d1",
        "shared.bin",
        [THIRD_READ],
        [r"4096\.0 +4096"],
        before="mkdir -p $O/d1",
    ),
    "pidns_inside": (
        "mkdir -p $O/d1; unshare --fork --pid --mount-proc $PY -m tracing --output=$O/t -- $PY "
        f"$R/01_pidns/shared_fd.py $O/d1 2>&1{SHOW} shared.bin x",
        [THIRD_READ],
        ["bpftrace records"],
    ),
    **in_both(
        "pidreuse",
        "$PY $R/02_pidreuse/reuse.py $O/d2",
        "/a.bin",
        [r"read +(8192\.0|NaN) +4096"],
        [],
        before="mkdir -p $O/d2",
    ),
    "libaio": (
        "mkdir -p $O/d3; export O; "
        + traced("fio --minimal --ioengine=libaio $R/03_aio/job.fio", backend="strace"),
        ["use libaio or io_uring: what is read and written by these is not"],
        [],
    ),
    "io_uring": (
        "mkdir -p $O/d3; export O; "
        + traced("fio --minimal --ioengine=io_uring $R/03_aio/job.fio", backend="bpftrace"),
        ["use libaio or io_uring: what is read and written by these is not"],
        [],
    ),
    **in_both("fchdir", "$PY $R/05_fchdir/walk.py $O/d5", "bin$", IN_DEEP, []),
    **in_both(
        "leader_exits",
        "$O/l $O/d5/leader.dat",
        "",
        ["other files: 65,536 bytes read in 16 calls"],
        [],
        before="mkdir -p $O/d5; cc $R/05_fchdir/leader_exits.c -pthread -o $O/l; "
        "head -c 65536 /dev/zero >$O/d5/leader.dat",
    ),
    # The processor time of all that are waited for, as bash and the kernel say it.
    "busy": (
        traced(
            "bash -c 'TIMEFORMAT=\"took %U %S\"; time sh $R/04_short/busy.sh 60'", backend="strace"
        )
        + " | tee $O/log; $PY -c \"import json, os; o = os.environ['O'] + '/'; found = [w for w in "
        "open(o + 'log') if w.startswith('took')][0].split(); print('share', json.load(open(o + "
        "'t/summary.json'))['usage']['cpu_seconds'] / sum(map(float, found[1:])))\"",
        [r"share (0\.9|1\.0)"],
        [],
    ),
    "double_fork": (
        "mkdir -p $O/d4; head -c 67108864 /dev/zero >$O/d4/big.bin; "
        + traced("$PY $R/04_short/double_fork.py $O/d4 10", backend="proc")
        + "; grep -o 'at least' $O/t/summary.html $O/t/summary.json",
        ["html:at least", "counters are at least so much|json:at least"],
        [],
    ),
    # Mounted again, the disks' files are no more in the page cache: reading them takes faults.
    "inode": (
        traced(
            "$PY $R/14_inode/map.py $O/mnt1/part-1.bin $O/mnt2/part-2.bin",
            "part-|inode",
            backend="bpftrace",
            before="bash $R/14_inode/setup.sh; for n in 1 2; do umount $O/mnt$n; "
            "mount -o loop $O/disk$n.img $O/mnt$n; done",
        )
        + "; umount $O/mnt1 $O/mnt2",
        [r"fault +page_fault .*mnt1/part-1\.bin"],
        [r"fault +page_fault .*part-2\.bin"],
    ),
    "renames": (
        "mkdir -p $O/d6; " + traced("$PY $R/06_renames/many.py $O/d6 8000", backend="strace"),
        ["800,000 bytes written in 8,000 calls"],
        [],
    ),
    **{
        f"mllog_{kind}": (
            traced(f"$PY $R/11_mllog/train.py $O/d11 {kind}", backend="bpftrace")
            + "; $PY -c \"import json, os; print('phases', *[p['name'] for p in json.load(open("
            "os.environ['O'] + '/t/summary.json'))['phases']])\"",
            ["TFRecords: 600,000 bytes read", r"phases (\S+ ){4}\S+"],
            [],
        )
        for kind in ("plain", "preamble", "rank")
    },
    "daemon": (
        traced("sh $R/15_daemon/start.sh", backend="strace"),
        [r"kill \d+"],
        [],
    ),
    "below_target": (
        f"{MADE} below_target $O/x >/dev/null; {COMPARED} $L/NVIDIA $O/x/NVIDIA 2>&1",
        [r"0\.720?"],
        [r"faster"],
    ),
    "seconds": (
        f"{MADE} seconds $O/x >/dev/null; {COMPARED} $L/NVIDIA $O/x/NVIDIA 2>&1",
        ["1970"],
        [r"0\.0217"],
    ),
    "one_line": (
        f"{MADE} one_line $O/x >/dev/null; {COMPARED} $L/NVIDIA $O/x/NVIDIA 2>&1",
        ["are the same runs, time for time"],  # both records of the line are read
        ["copy the log again", "Traceback"],
    ),
    "equal_figures": (
        "$PY $R/13_stats/make.py $O/s/equal 10 10 10 10 10 10 10 10 10 10; "
        "$PY $R/13_stats/make.py $O/s/equal2 10.5 10.5 10.5 10.5 10.5 10.5 10.5 10.5 10.5 10.5; "
        f"{COMPARED} $O/s/equal $O/s/equal2 --fail_if_slower=3% 2>&1",
        ["equal|no interval"],
        ["Traceback"],
    ),
    "far_off": (
        "$PY $R/13_stats/make.py $O/s/equal 10 10.1 10.2 9.9 9.8 10 10.1 10.05 9.95 10; "
        "$PY $R/13_stats/make.py $O/s/b 30 9.4 9.5 9.45 9.5 9.42 9.48 9.44 9.46 9.5; "
        f"{COMPARED} $O/s/equal $O/s/b 2>&1",
        ["FAR OFF in B: result_0.txt"],
        [],
    ),
    "expect": (
        "$PY -m mlperf_results.expect --accelerator=H100 --count=8 --batch=8192 2>&1",
        ["published"],
        ["Traceback"],
    ),
}

VOCABULARIES = "different vocabularies, by MD5: .*make data again with the vocab.txt of the model"
# Two processes of a tiny run; of several hosts.
WORKER = (
    'env TF_CONFIG=\'{"cluster": {"worker": ["localhost:23461", "localhost:23462"]}, "task": '
    '{"type": "worker", "index": %d}}\' $PY $R --connect_timeout_seconds=200 --output_dir=$O/late'
)
TRAINING = {
    "late_worker": (
        f"({WORKER % 0} 2>&1) & sleep 60; {WORKER % 1} >/dev/null 2>&1; wait",
        ["waiting up to 200 s for 1 other process at localhost:23461", "RESULT,bert"],
        ["Traceback"],
    ),
    "mpirun": (
        "mpirun --allow-run-as-root --oversubscribe -n 2 $PY $R --output_dir=$O/mpi 2>&1",
        [r"(?s)^(?!.*RESULT,bert.*RESULT,bert).*RESULT,bert"],
        ["Traceback"],
    ),
    "gpu_choice": (
        "bash $HERE/gpu_choice.sh | grep -A1 -F '[broken] A=1'",
        [r"Driver/library version mismatch.*NUM_GPUS.*rc=1"],
        ["mlperf-bert:"],
    ),
    "bucket": (
        "bucket",
        [r"(== (no slash|OUTPUT_DIR|WIKI_DIR|DATA_DIR): rc=0[^=]*){4}"],
        [r"'/run/", "copy it here again", "quote the glob"],
    ),
    "added_tokens": ("added_tokens", [r"lacks 3 tokens .*'covid19' \(30522\)"], []),
    "japanese": ("japanese", ["tokenizer_class is 'BertJapaneseTokenizer'"], []),
    "vocabularies": ("vocabularies", [f"error: {VOCABULARIES}"], ["errors: 0"]),
    "unknown": ("unknown", [r"16 of 16 tokens \(100\.0%\) are \[UNK\]"], []),
    "evaluator": ("evaluator", ["its figures are of other evaluation data"], []),
    "squad": ("squad", ["8 questions have no answer|8 of 8 questions"], ["string indices must be"]),
    "platform_name": ("platform_name", ["RESULT,bert"], []),
    "cache_variable": (
        "cache_variable",
        [r"(?m)^cache$", "errors: 0", "errors: 1"],
        [r"(?m)^\w+\.stablehlo$"],
    ),
    "xla_flags": ("xla_flags", ["XLA compiles clusters of operations: TF_XLA_FLAGS"], ["nothing"]),
    "plugin": ("plugin", ["jax finds none .*driver.*plugin"], ["gpu-tensorflow"]),
    "disable_jit": ("disable_jit", ["JAX_DISABLE_JIT: .*leave the variable out"], []),
    "cache_orphan": ("cache_orphan", [], ["UserWarning"]),
    "hangup": ("hangup", ["HUP rc=75", r"model\.ckpt-\d+\.index"], []),
    "heads": ("heads", [], ["give the --bert_config_file that belongs to it"]),
    "raw_wiki": ("raw_wiki", ["hint: .*begin with <doc id=.*process_wiki.sh"], []),
}
