"""The subpackages: none is above its maximum of lines, and no files import each other."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import count
from tests.helpers.imports import imports_of

ROOT = Path(__file__).resolve().parent.parent
# Files that import each other, imports inside functions and for types counted: it only shrinks.
KNOWN_CIRCLES: list[set[str]] = []

# Files of fewer than 70 lines: why each is a file of its own. Scripts whose names the reference
# gives, in the root and in cleanup_scripts/, and commands need no reason.
SMALL_FILES = {
    "benchmarks/contestants/": "one for each library, in an environment of its own",
    "benchmarks/random_task.py": "several benchmarks train on it",
    "benchmarks/reports.py": "several benchmarks keep and show their figures by it",
    "mlperf_bert/data/beam_pipeline.py": "nothing else loads Apache Beam",
    "mlperf_bert/data/evaluation_shard.py": "pick_eval_samples.py loads nothing else of the data",
    "mlperf_bert/data/jit.py": "all kernels of the data are compiled by it",
    "mlperf_bert/data/software.py": "data, runs, exports and descriptions of systems name it",
    "mlperf_bert/finetuning/by_jax.py": "no other runtime loads jax",
    "mlperf_bert/finetuning/splits.py": "readers of all tasks share it",
    "mlperf_bert/finetuning/weights.py": "a run, a sweep and the model of a task ask it",
    "mlperf_bert/mlperf/caches.py": "a run and --check ask it",
    "mlperf_bert/model/kernel_call.py": "a benchmark calls kernels without TensorFlow",
    "mlperf_bert/optimization/config.py": "what describes a run needs no TensorFlow",
    "mlperf_bert/portable/flop.py": "exports and benchmarks share the formula",
    "mlperf_bert/programs/config.py": "what describes a run needs no TensorFlow",
    "mlperf_results/setup.py": "setuptools asks for it",
    "tracing/clocks.py": "tracers, sampler and tables share it",
    "tracing/outputs.py": "a command starts before pandas and pictures are loaded",
    "tracing/sample/": "scripts of a sample, apart from what reads it",
}


@pytest.mark.parametrize("subpackage", count.MAX_LINES)
def test_a_subpackage_has_at_most_its_maximum_of_lines(subpackage):
    own = count.lines()[subpackage]
    assert own <= count.MAX_LINES[subpackage], (
        f"{own} lines, at most {count.MAX_LINES[subpackage]}: shorten other code, or raise it "
        "in tests/helpers/count.py and name the capability that needs more"
    )


def test_a_small_file_has_a_reason():
    small = [
        str(name)
        for name, text in own_files()
        if len(text.splitlines()) < 70
        and name.name not in ("__init__.py", "conftest.py")
        and len(name.parts) > 1
        and name.parts[0] != "cleanup_scripts"
        and '__name__ == "__main__"' not in text
    ]
    without = [name for name in small if not name.startswith(tuple(SMALL_FILES))]
    assert not without, "join it to what uses it, or say in SMALL_FILES why it is a file"
    unneeded = [each for each in SMALL_FILES if not any(n.startswith(each) for n in small)]
    assert not unneeded, "take it out of SMALL_FILES"


def own_files() -> Iterator[tuple[Path, str]]:
    """Every file of Python that git knows, without tests: its name and its text."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    for name in map(Path, listed):
        if "tests" not in name.parts and (ROOT / name).exists():
            yield name, (ROOT / name).read_text(encoding="utf-8")


def test_every_subpackage_has_a_maximum_of_lines():
    package = ROOT / "mlperf_bert"
    named = {str(path.parent.relative_to(ROOT)) for path in package.glob("*/**/__init__.py")}
    named |= {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"pages", "tests"}
    assert count.MAX_LINES.keys() == named | {"root", "benchmarks", "cleanup_scripts", "cloud"}


def imported_by(path: Path, names: set[str]) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {name for name in imports_of(tree) if name in names}


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Sets of two files or more, each of which reaches all others."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        found, waiting = set(), [start]
        while waiting:
            for other in imports[waiting.pop()] - found:
                found.add(other)
                waiting.append(other)
        reached[start] = found
    groups = {
        frozenset(other for other in reached[name] if name in reached[other])
        for name in imports if name in reached[name]
    }  # fmt: skip
    return [set(group) for group in groups if len(group) > 1]


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}, "e": set()}) == [
        {"a", "b", "c"}
    ]
    assert not circles({"a": {"b"}, "b": set()})


@pytest.mark.parametrize("product", ["mlperf_bert", "mlperf_results", "tracing"])
def test_no_files_import_each_other_but_the_known(product):
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / product).rglob("*.py")
        if not {"tests", "benchmarks"} & set(path.relative_to(ROOT).parts)
    }
    imports = {name: imported_by(path, files.keys() - {name}) for name, path in files.items()}
    known = [circle for circle in KNOWN_CIRCLES if min(circle).startswith(f"{product}.")]
    assert sorted(map(sorted, circles(imports))) == sorted(map(sorted, known))


def test_a_benchmark_imports_no_test_and_patches_nothing():
    """What it measures must be what runs."""
    for path in [*ROOT.glob("benchmarks/**/*.py"), *ROOT.glob("*/benchmarks/**/*.py")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        taken = imports_of(tree)
        assert not any(name.split(".")[0] == "tests" for name in taken), path
        assert not any(name.startswith("unittest.mock") for name in taken), path
        modules = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                patched = isinstance(target, ast.Attribute) and ast.unparse(target.value) in modules
                assert not patched, f"{path}:{node.lineno} patches a module"
