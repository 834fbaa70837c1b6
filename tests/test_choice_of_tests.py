"""`make test CHANGED=1` finds the tests that a change can reach; in CI each skip is listed."""

import os
import subprocess
import sys

import pytest

from tests.fixtures import REPOSITORY
from tests.helpers import changed, programs

FILES = {
    "package/__init__.py": "",
    "package/low.py": "",
    "package/high.py": "def f():\n    from package import low\n    return 'preset.flags'\n",
    "run.py": "import package.high\n",
    "presets/preset.flags": "",
    "docs/page.md": "",
    "tests/conftest.py": "",
    "tests/helpers/starts.py": "PRELOADED = ['package.high', 'run.py']\n",
    "tests/test_low.py": "from package import low\n",
    "tests/test_high.py": "from package.high import f\n",
    "tests/test_run.py": "from tests.helpers import starts\nCOMMAND = ['python', 'run.py']\n",
    "tests/test_docs.py": "PAGES = ROOT.rglob('*.md')\n",
    "tests/test_presets.py": "FOLDER = ROOT / 'presets'\n",
    "tests/test_alone.py": '"""Not run.py."""\nfrom tests.helpers import starts\n',
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("package/low.py", {"low", "high", "run"}),
        ("package/high.py", {"high", "run"}),
        ("run.py", {"run"}),
        ("presets/preset.flags", {"presets"}),
        ("docs/page.md", {"docs"}),
        ("tests/test_high.py", {"high"}),
        ("tests/helpers/starts.py", {"run", "alone"}),
        ("tests/conftest.py", {"low", "high", "run", "docs", "presets", "alone"}),
        ("LICENSE", set()),
    ],
)
def test_a_change_reaches_what_imports_or_names_it(path, expected):
    graph = changed.Graph(FILES)
    needs = {name: graph.needed_by(name, text) for name, text in FILES.items()}
    found = changed.tests_of([path], needs)
    assert found == sorted(f"tests/test_{name}.py" for name in expected)


def test_changed_is_what_is_committed_here_what_is_not_and_what_is_new(tmp_path):
    def git(*words):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    git("init", "--initial-branch=main")
    for name in ("kept", "committed", "edited", "gone"):
        (tmp_path / name).write_text("1")
    git("add", "--all")
    git("commit", "--message=one")
    assert changed.changed_files(tmp_path) == set()
    git("switch", "--create=mine")
    (tmp_path / "committed").write_text("2")
    (tmp_path / "gone").unlink()
    git("commit", "--all", "--message=two")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").touch()
    expected = {"committed", "edited", "gone", "new"}
    assert changed.changed_files(tmp_path) == expected
    git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert changed.changed_files(tmp_path) == {"edited", "new"}


def test_the_tests_of_a_module_of_this_project_are_found():
    files = changed._git("ls-files")
    graph = changed.Graph(files)
    texts = [path for path in files if path.endswith((".py", ".sh"))]
    needs = {path: graph.needed_by(path, (changed.ROOT / path).read_text()) for path in texts}
    # A command that no module imports: of more than a hundred files few reach it.
    found = changed.tests_of(["mlperf_results/alternate.py"], needs)
    assert {"mlperf_results/tests/test_alternate.py", "tests/test_architecture.py"} <= set(found)
    assert len(found) < 12
    found = changed.tests_of(["mlperf_bert/training/loop.py"], needs)
    assert {"tests/training/test_end_of_a_run.py", "tests/training/test_resume.py"} <= set(found)


TESTS = """
import pytest

def test_listed():
    pytest.skip("no gcloud here")

def test_by_hand():
    pytest.skip("no tool here")

@pytest.fixture
def tool():
    pytest.skip("no right here")

def test_in_a_fixture(tool):
    pass

@pytest.mark.skipif(True, reason="another machine")
def test_by_a_mark():
    pass

@pytest.mark.xfail
def test_that_is_known_to_fail():
    raise ValueError
"""


@pytest.mark.parametrize("in_ci", [False, True])
def test_a_skip_that_is_not_listed_fails_in_ci(tmp_path, in_ci):
    (tmp_path / "test_skipped.py").write_text(TESTS)
    words = ["-c", "pyproject.toml", "-p", "tests.fixtures", "-p", "no:cacheprovider", "-n", "0"]
    environment = {name: value for name, value in os.environ.items() if name != "CI"}
    environment |= {"CI": "true"} if in_ci else {}
    command = [sys.executable, "-m", "pytest", *words, str(tmp_path)]
    done = programs.run(*command, cwd=REPOSITORY, env=environment)
    assert done.returncode == int(in_ci), done.stdout
    assert "no gcloud here" in done.stdout
    for reason in ("no tool here", "no right here", "another machine"):
        assert reason in done.stdout
        assert (f"{reason}; in CI no test may be skipped for this" in done.stdout) == in_ci
    counts = "1 failed, 1 skipped, 1 xfailed, 2 errors" if in_ci else "4 skipped, 1 xfailed"
    assert counts in done.stdout
