"""Packs what on_a_card.py needs for a machine that has jax, but no TensorFlow and no network.

    python -m benchmarks.pack_run build/card

OUTPUT gets `first.tar.xz`, all of a first call: this project and what on_a_card.py prepares, with
the exported steps; for trainings also the packages, in pieces of at most 50 MB. There, in a copy of
this repository or in an empty folder:

    python3 -m tarfile -e build/card/first.tar.xz .
    python3 -m benchmarks.on_a_card --only kernels step
    (cd build/card && sha256sum -c pieces.sha256 && cat piece_* >packages.tar.xz)
    python3 -m tarfile -e build/card/packages.tar.xz build/card
    PYTHONPATH=build/card/python3.12 python3 -m benchmarks.on_a_card --only training

The packages are those of the lock file that a small training here has imported or mapped. jax and
its requirements are not packed: the machine has them, and a process can load numpy and ml_dtypes
only once. Optional packages are not packed either.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from benchmarks import accelerator, on_a_card
from benchmarks.processes import ROOT
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments

LOCK = ROOT / "environment" / "requirements.lock"
OF_JAX = set("jax jaxlib ml-dtypes numpy opt-einsum scipy".split())
# tf_keras, tf-models, TensorFlow and urllib3 look for these, and do without.
USED_IF_THERE = set(
    "pandas pillow pyarrow pygments python-dateutil tensorflow-text zstandard".split()
)
# tqdm is imported by what lasts; the lock has TensorFlow for the CPU alone.
ALSO = {"tqdm", "tensorflow-cpu"}
NEVER_READ = ["tensorflow/include", "tensorflow/xla_aot_runtime_src", "numba/tests", "bin"]
PIECE_BYTES = 50_000_000  # a machine that takes 64 MiB at once takes the repository too
FIRST_BYTES = 60_000_000
NOT_PROJECT = re.compile(r"(.*/)?(tests|docs|environment|tracing|mlperf_results|cloud)/|.*\.png$")

_LOOK = """
import atexit, json, runpy, sys
def write(to):
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    files += [line.split(maxsplit=5)[-1].strip() for line in open("/proc/self/maps")]
    json.dump(files, open(to, "w"))
atexit.register(write, sys.argv.pop(1))
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def normal(name: str) -> str:
    """A distribution's name as the lock file spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def imported() -> set[str]:
    """The distributions of which a small training has imported or mapped a file."""
    with tempfile.TemporaryDirectory() as work:
        seen = Path(work, "files.json")
        size = on_a_card.TINY
        accelerator.write_task(size.task(Path(work)), size.model)
        command = on_a_card.training(Path(work), Path(work, "run"), True, size, "xla")
        subprocess.run(
            [sys.executable, "-c", _LOOK, str(seen), *command[1:], "--runtime=jax"],
            check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        files = {file.rpartition("/site-packages/")[2] for file in json.loads(seen.read_text())}
    return {
        normal(each.metadata["Name"])
        for each in metadata.distributions()
        if any(str(file) in files for file in each.files or ())
    }


def install(site: Path, wanted: set[str], python: str) -> None:
    """Installs the locked distributions for a Python."""
    shutil.rmtree(site, ignore_errors=True)
    lines = re.finditer(r"^([\w.-]+)==(?:.*\\\n)*.*\n", LOCK.read_text(), re.MULTILINE)
    lock = site.with_name("packed.lock")
    lock.write_text("".join(line[0] for line in lines if line[1] in wanted))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", f"--target={site}"]
    pip += [f"--python-version={python}", "--only-binary=:all:", "--no-deps"]
    subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=True)


def shrink(site: Path) -> None:
    """Removes what nothing reads, and the symbols that are for debuggers."""
    for name in NEVER_READ:
        shutil.rmtree(site / name, ignore_errors=True)
    for file in site.glob("tensorflow/*.so.2"):
        subprocess.run(["strip", "--strip-unneeded", str(file)], check=True)


def pack_first(output: Path) -> None:
    """Writes first.tar.xz: the project as git lists it, and the folder's `data`."""
    listed = ["git", "ls-files", "-z"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    first = output / "first.tar.xz"
    with tarfile.open(first, mode="w:xz", preset=6) as tar:
        for name in names.rstrip("\0").split("\0"):
            if not NOT_PROJECT.match(name):
                tar.add(ROOT / name, name)
        tar.add(output / "data", "build/card/data")
    print(f"{first}: {(size := first.stat().st_size):,} bytes")
    if size > FIRST_BYTES:
        raise ValueError(f"{first}: at most {FIRST_BYTES:,} bytes can be copied at once")


def pack(output: Path, site: str) -> None:
    """Writes pieces of the folder's packages beside them, and the digests of all pieces."""
    with tempfile.TemporaryFile() as archive:
        with tarfile.open(fileobj=archive, mode="w:xz", preset=6) as tar:  # minutes
            tar.add(output / site, site)
        archive.seek(0)
        digests: list[str] = []
        while piece := archive.read(PIECE_BYTES):
            name = f"piece_{len(digests):02}"  # `cat piece_*` puts them together
            (output / name).write_bytes(piece)
            digests.append(f"{hashlib.sha256(piece).hexdigest()}  {name}\n")
    (output / "pieces.sha256").write_text("".join(digests))
    print(f"{output}: {len(digests)} pieces, and pieces.sha256")


@ends_in_one_line("pack_run")
def main() -> None:
    """Packs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("output", type=lambda path: Path(path).absolute(), help="a folder")
    parser.add_argument("--python_version", default="3.12", help="of the machine")
    parser.add_argument("--has", nargs="*", default=[], help="packages that the machine has, too")
    parser.add_argument("--first_only", action="store_true", help="without packages")
    parser.add_argument("--tiny", action="store_true", help="for on_a_card --tiny")
    options = parser.parse_args(expanded_arguments())
    on_a_card.prepare(options.output / "data", on_a_card.TINY if options.tiny else on_a_card.LARGE)
    pack_first(options.output)
    if options.first_only:
        return
    wanted = imported() | ALSO
    wanted -= OF_JAX | USED_IF_THERE | set(map(normal, options.has))
    site = f"python{options.python_version}"
    install(options.output / site, wanted, options.python_version)
    shrink(options.output / site)
    pack(options.output, site)


if __name__ == "__main__":
    sys.exit(main())
