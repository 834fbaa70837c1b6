"""The test files that what git says is changed can reach: `make test CHANGED=1`.

    python -m tests.helpers.changed

prints them. Changed is what differs from origin/main, or from main where there is no remote, what
is not committed, and what git does not know yet. A file reaches what it imports. Tests, demo and
shell scripts also reach what their strings name: a root script that they start, a preset, a
document, a folder without Python, a pattern such as *.md. A conftest is reached by all tests below.
"""

import ast
import fnmatch
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"[\w.@*-]+(?:/[\w.@*-]+)*")
# What a package says in its messages and documentation it does not need.
NAMES_WHAT_IT_NEEDS = re.compile(r"(\w+/)?tests/|demo/|cloud/")
# It names all that is imported in advance, for speed.
NEEDS_NOTHING = "tests/helpers/starts.py"


def _git(*words: str, root: Path = ROOT) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files(root: Path = ROOT) -> set[str]:
    """Paths from the root, of files that are gone too."""
    branches = _git("branch", "--all", "--format=%(refname:short)", root=root)
    base = next((name for name in ("origin/main", "main") if name in branches), "HEAD")
    untracked = _git("ls-files", "--others", "--exclude-standard", root=root)
    fork = _git("merge-base", base, "HEAD", root=root)
    return {*_git("diff", "--name-only", "--no-renames", *fork, root=root), *untracked}


class Graph:
    """Which file of the repository needs which."""

    def __init__(self, files: Iterable[str]):
        """Files are paths from the root."""
        self.files = set(files)
        self._by_name: dict[str, set[str]] = {}
        for path in self.files:
            names = [path]
            if not path.endswith(".py"):  # tests write REPOSITORY / "docs" / "data.md"
                names += [Path(path).name, path.partition("/")[0]]
            for name in names:
                self._by_name.setdefault(name, set()).add(path)

    def needed_by(self, path: str, content: str) -> set[str]:
        """What a file imports or names."""
        found, strings = set(), [content]
        if path.endswith(".py"):
            tree = ast.parse(content)
            found = {file for module in imports_of(tree) for file in self._of_module(module)}
            strings = _strings(tree)
        if NAMES_WHAT_IT_NEEDS.match(path) or not path.endswith(".py"):
            found |= {file for text in strings for file in self._named(text)}
        if path == NEEDS_NOTHING:
            found = set()
        folders = [parent.as_posix() for parent in Path(path).parents]
        conftests = {f"{folder}/conftest.py" for folder in folders}
        return (found | (conftests & self.files)) - {path}

    def _of_module(self, module: str) -> set[str]:
        place = module.replace(".", "/")
        return {f"{place}.py", f"{place}/__init__.py", f"{place}/__main__.py"} & self.files

    def _named(self, text: str) -> set[str]:
        found = set()
        for word in PATH.findall(text):
            if re.search(r"\*\.\w+$", word):
                found |= {path for path in self.files if _matches(path, word)}
            found |= self._by_name.get(word, set()) | self._of_module(word)
        return found


def _matches(path: str, pattern: str) -> bool:
    name = path if "/" in pattern else Path(path).name
    return fnmatch.fnmatchcase(name, pattern)


def imports_of(tree: ast.AST) -> set[str]:
    """Every module that a file imports, at its head or inside a function, and names in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            found |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _strings(tree: ast.AST) -> list[str]:
    """All but docstrings."""
    nodes = list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = (node for node in nodes if isinstance(node, ast.Constant))
    values = (node.value for node in constants if id(node) not in docstrings)
    return [value for value in values if isinstance(value, str)]


def tests_of(changed: Iterable[str], needs: Mapping[str, set[str]]) -> list[str]:
    """Test files that need a changed file, by any number of steps."""
    needed_by: dict[str, set[str]] = {}
    for path, others in needs.items():
        for other in others:
            needed_by.setdefault(other, set()).add(path)
    found, waiting = set(), list(changed)
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            waiting.extend(needed_by.get(path, ()))
    return sorted(path for path in found & needs.keys() if Path(path).name.startswith("test_"))


def main() -> None:
    """Prints the test files, one a line."""
    known = {*_git("ls-files"), *_git("ls-files", "--others", "--exclude-standard")}
    changed = changed_files()
    graph = Graph(known | changed)  # what was removed is named by what must change with it
    texts = {path for path in known if path.endswith((".py", ".sh")) and (ROOT / path).is_file()}
    needs = {p: graph.needed_by(p, (ROOT / p).read_text(encoding="utf-8")) for p in texts}
    print("\n".join(tests_of(changed, needs)))


if __name__ == "__main__":
    main()
