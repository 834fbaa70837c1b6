"""The house rules: who imports whom, who reads flags, what a command loads, how long a root is."""

import argparse
import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tracing
from mlperf_bert.portable import run_step
from tests.helpers import imports

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "mlperf_bert"

# What a run executes, level by level.
CORE = [
    {"files"},
    {"mlperf", "data", "model", "optimization"},
    {"checkpoints", "input"},
    {"programs"},
    {"training"},
]
# What a counted run does not execute: it may import the core, which knows nothing of it.
USERS_OF_CORE = [{"convert", "submission", "finetuning", "portable"}]
# A subpackage may import those of the levels before its own, no sibling.
LEVELS = [*CORE, *USERS_OF_CORE]
# Which of our own packages each product imports, and a subpackage that draws.
MAY_IMPORT = {
    "pages": {"pages"},
    "tracing": {"tracing"},
    "mlperf_results": {PACKAGE, "mlperf_results"},
    PACKAGE: {PACKAGE},
    f"{PACKAGE}/submission": {"pages", PACKAGE},
}
# Commands that use the core and run TensorFlow take flags as the root scripts do.
COMMANDS_WITH_FLAGS = {
    "convert/from_hugging_face.py",
    "convert/to_hugging_face.py",
    "portable/export.py",
}
FRONT = {"command_line.py", "flags_page.py"} | COMMANDS_WITH_FLAGS
# Options of a run; TF_CONFIG, Slurm; how much TensorFlow reports; the image.
READS_ENVIRONMENT = {
    "command_line.py",
    "training/workers.py",
    "tensorflow_import.py",
    "data/software.py",
}
# Exported folders have copies, which run on machines without the rest of the project.
_COPIED = ("programs/jax_step.py", "portable/run_step.py")
ALONE = {ROOT / PACKAGE / name for name in _COPIED}
LONGEST_MAIN_LINES = 20

MODULES = sorted((ROOT / PACKAGE).rglob("*.py"))
OUR_OWN = {path.parent.name for path in ROOT.glob("*/__init__.py")}
SCRIPTS = sorted({*ROOT.glob("*.py")} - {ROOT / "conftest.py"})


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[str]:
    return imports.imports_of(parsed(path))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / PACKAGE).as_posix()


def code_of(folder: str) -> list[Path]:
    """Without tests, and without what measures a product."""
    beside = {"tests", "benchmarks"}
    return [path for path in (ROOT / folder).rglob("*.py") if not beside & set(path.parts)]


def level_of(subpackage: str) -> int:
    return next(number for number, subpackages in enumerate(LEVELS) if subpackage in subpackages)


def subpackages_imported(path: Path) -> set[str]:
    parts = (name.split(".") for name in imports_of(path))
    subpackages = set.union(*LEVELS)
    return {p[1] for p in parts if p[0] == PACKAGE and len(p) > 1 and p[1] in subpackages}


def is_there(module: str) -> bool:
    """Whether a module or package of ours can be imported."""
    place = ROOT / module.replace(".", "/")
    return place.is_dir() or place.with_suffix(".py").is_file()


OURS = [*SCRIPTS, *sorted(path for name in OUR_OWN for path in (ROOT / name).rglob("*.py"))]


def test_what_is_imported_of_ours_is_there():
    """Also in files that no fast test imports."""
    for path in OURS:
        for node in ast.walk(parsed(path)):
            module = getattr(node, "module", None) if isinstance(node, ast.ImportFrom) else None
            if module and module.split(".")[0] in OUR_OWN:
                assert is_there(module), f"{path} line {node.lineno}: {module}"
                package = ROOT / module.replace(".", "/") / "__init__.py"
                if package.exists() and not package.read_text(encoding="utf-8"):
                    for alias in node.names:
                        found = is_there(f"{module}.{alias.name}")
                        assert found, f"{path} line {node.lineno}: {module}.{alias.name}"


def test_nothing_imports_a_test():
    """What several tests need is in a helper: of their folder, or of tests/helpers."""
    for path in OURS:
        for module in imports_of(path):
            is_test = re.match(r"(\w+\.)?tests\.(.*\.)?test_", module)
            assert not is_test, f"{path}: {module}: move what it needs"


def test_a_test_file_of_400_lines_says_why():
    tests = [path for path in OURS if path.name.startswith("test_")]
    assert {path.parent.name for path in tests} >= {"tests", "mlperf"}
    for path in tests:
        if len(path.read_text(encoding="utf-8").splitlines()) >= 400:
            assert "Long because " in ast.get_docstring(parsed(path)), (
                f"{path}: split it, or say why"
            )


def test_imports_go_one_way():
    for path in MODULES:
        if path.parent == ROOT / PACKAGE:
            assert subpackages_imported(path) <= {"files"}, path
            continue
        subpackage = path.relative_to(ROOT / PACKAGE).parts[0]
        for other in subpackages_imported(path) - {subpackage}:
            assert level_of(other) < level_of(subpackage), f"{name_of(path)} imports {other}"


def test_what_describes_a_run_is_on_the_ground_floor():
    imported = imports_of(ROOT / PACKAGE / "training/config.py")
    assert not any(name.startswith(f"{PACKAGE}.training") for name in imported)


@pytest.mark.parametrize("script", ["run_pretraining.py", "create_pretraining_data.py"])
def test_a_run_and_its_data_import_nothing_that_uses_the_core(script):
    """By `test_imports_go_one_way` what they import does not either.

    A function of a script may hand an event of theirs to the run, which knows events only.
    """
    at_the_top = {
        f"{node.module}.{name.name}".split(".")[1]
        for node in parsed(ROOT / script).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
        for name in node.names
    }
    assert "command_line" in at_the_top and not at_the_top & set.union(*USERS_OF_CORE)


def test_a_product_imports_only_what_it_may():
    """Its tests and its measurements may take helpers of the tests, and the demo."""
    for name, allowed in MAY_IMPORT.items():
        for path in code_of(name):
            imported = {module.split(".")[0] for module in imports_of(path)} & OUR_OWN
            nearer = MAY_IMPORT.get(path.parent.relative_to(ROOT).as_posix(), allowed)
            assert imported <= nearer, path


def test_a_product_imports_another_by_public_names():
    for path in code_of("mlperf_results"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                names = [*node.module.split("."), *(alias.name for alias in node.names)]
                assert not any(name.startswith("_") for name in names), f"{path}:{node.lineno}"


def test_data_rules_and_submissions_need_no_tensorflow():
    for path in MODULES:
        if name_of(path).startswith(("data/", "mlperf/", "submission/")):
            foreign = {name.split(".")[0] for name in imports_of(path)}
            assert not foreign & {"tensorflow", "tf_keras", "official"}, path


def test_only_files_asks_whether_a_path_is_of_a_bucket():
    for path in [path for path in [*MODULES, *SCRIPTS] if path.parent.name != "files"]:
        asked = re.search(r"is_remote|isinstance\([^()]*, Path\)|[\"']gs:", path.read_text("utf-8"))
        assert not asked, f"{path}: {asked[0]}; give files/ a function that says what is meant"


def test_only_root_scripts_read_flags_and_environment():
    for path in MODULES:
        if name_of(path) not in FRONT:
            names = imports_of(path)
            of_flags = ("absl.flags", f"{PACKAGE}.command_line")
            assert not any(name.startswith(of_flags) for name in names), (
                f"{path}: take argparse, as submission/report.py, or see COMMANDS_WITH_FLAGS here"
            )
        if name_of(path) not in READS_ENVIRONMENT and path not in ALONE:
            source = path.read_text(encoding="utf-8")
            assert "os.environ" not in source and "getenv" not in source, path


def test_the_page_names_what_reads_the_environment():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    [sentence] = re.findall(r"- \*\*The environment\*\*.*?\n\n", page, re.DOTALL)
    assert set(re.findall(r"`([\w/]+\.py)`", sentence)) == READS_ENVIRONMENT | {
        path.name for path in ALONE
    }


COMMANDS = [
    path
    for folder in (PACKAGE, "benchmarks", "cleanup_scripts", "demo", "mlperf_results")
    for path in (ROOT / folder).rglob("*.py")
    if path not in ALONE and "tests" not in path.parts
]


def test_every_command_line_expands_the_home_folder_and_refuses_empty_values():
    calls = [
        (path, node)
        for path in COMMANDS
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr.startswith("parse_")
        and ast.unparse(node.func.value).endswith("parser")
    ]
    assert calls
    for path, call in calls:
        given = ast.unparse(call.args[0]) if call.args else ""
        expands = re.fullmatch(r"expanded_arguments\((arguments)?\)", given)
        is_clean_up = path.name == "clean_up.py" and "may_be_empty=MAY_BE_EMPTY" in given
        assert expands or is_clean_up, (
            f"{path}:{call.lineno}: give parse_args expanded_arguments(arguments)"
        )


def test_every_command_line_ends_in_one_line():
    """Whatever goes wrong, and where what it prints goes to a program that has ended."""
    for path in COMMANDS:
        text = path.read_text(encoding="utf-8")
        if "ArgumentParser(" in text and "__main__" in text:
            assert "ends_in_one_line(" in text and "sys.exit(main())" in text, path


KINDS = {"int", "float", "word", "not_empty", "path_with_home", "path"}
"""Types of options that refuse an empty value."""


def test_what_imports_nothing_of_the_package_refuses_an_empty_value_by_its_type():
    for path in [*ALONE, *(ROOT / "tracing").glob("*.py")]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                given = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert given.keys() & {"action", "choices"} or given.get("type") in KINDS, (
                    f"{path}:{node.lineno}: type= one of {KINDS}"
                )
    for kind in (tracing.word, tracing.path_with_home, run_step.not_empty, run_step.path):
        with pytest.raises(argparse.ArgumentTypeError, match="is empty"):
            kind(" ")


def loaded_with(path: Path) -> set[Path]:
    """The file and those of ours that are loaded with it; not what its functions import."""
    found, waiting = set(), [path]
    while waiting:
        if (file := waiting.pop()) in found:
            continue
        found.add(file)
        for node in parsed(file).body:
            if isinstance(node, ast.ImportFrom):
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                places = [ROOT / f"{name.replace('.', '/')}.py" for name in names]
                waiting += [place for place in places if place.is_file()]
    return found


def test_a_trace_asks_for_its_packages_before_it_records():
    script = (ROOT / "tracing/trace.sh").read_text(encoding="utf-8")
    asked = re.search(r"^packages='(.*)'$", script, re.MULTILINE)[1].split()
    programs = ("tracing/__main__.py", "tracing/recorder.py", "tracing/outputs.py")
    files = set.union(*(loaded_with(ROOT / name) for name in programs))
    foreign = {module.split(".")[0] for file in files for module in imports_of(file)}
    # numpy and google.protobuf come with pandas and perfetto.
    others = {*sys.stdlib_module_names, *OUR_OWN, "numpy", "google"}
    assert sorted(foreign - others) == sorted(asked)


def loaded_from_others(path: Path) -> set[str]:
    """The packages of others that are loaded with a file."""
    heads = [node for file in loaded_with(path) for node in parsed(file).body]
    names = {alias.name for node in heads if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in heads if isinstance(node, ast.ImportFrom)}
    return {name.split(".")[0] for name in names} - OUR_OWN


TENSORFLOW = {"tensorflow", "tf_keras", "official"}


PROGRAMS = [
    path
    for path in [*SCRIPTS, *COMMANDS]
    if '__name__ == "__main__"' in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_programs_load_tensorflow_without_its_lines(path):
    source = path.read_text(encoding="utf-8")
    assert "TF_CPP_MIN_LOG_LEVEL" not in source, f"{path}: tensorflow_import sets it"
    if loaded_from_others(path) & TENSORFLOW:
        assert re.search(r"^ *tensorflow\(\)  # before other modules import it$", source, re.M), (
            path
        )


@functools.cache
def imported_by(modules: str) -> set[str]:
    """All that is loaded with modules, in a process of its own."""
    program = f"import sys, {modules}; print(*sys.modules)"
    environment = {k: v for k, v in os.environ.items() if k != "TF_USE_LEGACY_KERAS"}
    words = [sys.executable, "-c", program]
    done = subprocess.run(words, cwd=ROOT, env=environment, check=True, capture_output=True)
    return set(done.stdout.decode().split())


WITHOUT = {
    "create_pretraining_data.py": {"matplotlib", *TENSORFLOW},
    "pick_eval_samples.py": {"matplotlib", "numba", *TENSORFLOW},
    "mlperf_results/compare.py": {"matplotlib", *TENSORFLOW},
    f"{PACKAGE}/training/config.py": TENSORFLOW,
    f"{PACKAGE}/data/parts.py": {"numpy", "numba", *TENSORFLOW},
    "tracing/__main__.py": {"matplotlib", "pandas", *TENSORFLOW},
}
RESULTS = {f"mlperf_results.{path.stem}" for path in (ROOT / "mlperf_results").glob("[!_]*.py")}
# What only --check, --do_eval, the speed options, other commands or users of the core need; and
# Keras 3, which would take a fifth of the time that all imports take.
NOT_OF_A_RUN = """training.inspection training.offline model.encoder model.fusion data.stages
    mlperf.joining""".split()
IMPORTED = {
    **{name.removesuffix(".py").replace("/", "."): slow for name, slow in WITHOUT.items()},
    ", ".join(sorted(RESULTS - {"mlperf_results.setup"})): TENSORFLOW,
    "run_pretraining": {"keras", "google.cloud.storage", *(f"{PACKAGE}.{n}" for n in NOT_OF_A_RUN)},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_command_starts_without_what_its_work_may_not_need(name):
    assert not loaded_from_others(ROOT / name) & WITHOUT[name]


@pytest.mark.gate
@pytest.mark.parametrize("modules", IMPORTED)
def test_the_packages_of_others_do_not_load_it_either(modules):
    assert not imported_by(modules) & IMPORTED[modules]


# What `import run_pretraining` loads of ours. As of a subpackage: more needs a named capability.
MOST_FILES_OF_A_RUN, MOST_LINES_OF_A_RUN = 67, 11_700


@pytest.mark.gate
def test_a_run_does_not_load_more_than_it_did():
    modules = {name for name in imported_by("run_pretraining") if name.startswith(PACKAGE)}
    places = [ROOT / name.replace(".", "/") for name in modules]
    files = [p / "__init__.py" if p.is_dir() else p.with_suffix(".py") for p in places]
    files.append(ROOT / "run_pretraining.py")
    num_lines = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    assert 40 < len(files) <= MOST_FILES_OF_A_RUN and num_lines <= MOST_LINES_OF_A_RUN


@pytest.mark.parametrize("path", sorted(ALONE), ids=lambda path: path.name)
def test_what_is_copied_alone_imports_jax_and_numpy(path):
    foreign = {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names
    assert foreign <= {"jax", "jaxlib", "numpy", "jax_step"}
    for folder in (path.parent, path.parent.parent):
        own = {name.split(".")[0] for name in imports_of(folder / "__init__.py")}
        assert own <= sys.stdlib_module_names


MAINS = [*SCRIPTS, *(ROOT / PACKAGE / name for name in sorted(COMMANDS_WITH_FLAGS))]


@pytest.mark.parametrize("path", MAINS, ids=lambda path: path.name)
def test_root_scripts_are_flags_and_one_short_main(path):
    tree = parsed(path)
    functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
    assert [name for name in functions if name[0] != "_"] == ["main"]
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]  # of options
    assert not [n for c in classes for n in c.body if isinstance(n, ast.FunctionDef)]
    main = functions["main"]
    assert main.end_lineno - main.lineno < LONGEST_MAIN_LINES
