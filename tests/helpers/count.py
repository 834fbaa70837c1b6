"""Counts the tests by what they do, for the table of docs/testing.md.

    python -m tests.helpers.count

writes the table again. A test counts where its path or its own text has a word of the kind; the
variants of a test with parameters are one. The page says less than there are, so that it stays true
when tests are added or leave.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "testing.md"
KINDS = {
    "compare with what the reference or another implementation computed": (
        r"^tests/training/test_(trajectories|distributed)|^tests/finetuning/test_oracle"
        r"|^tests/optimization/|GENERATED|transformers|networks\.|tf_models|shared / |\bgolden\b"
    ),
    "kill, stop or signal a process": (
        r"send_signal|raise_signal|os\.kill|SIGKILL|kill_at_step|by_crash|\.kill\(\)|\.terminate\("
    ),
    "fill a disk, refuse a request, cut a connection or damage a file": (
        r"small_disk|RLIMIT_FSIZE|ulimit -f|No space left|\.fail\(|deny_writes|damage|spoil"
    ),
    "make many odd inputs from a seed (Hypothesis, or bytes that are changed)": (
        r"seeded\(|fuzzed|mutated"
    ),
    "give a wrong input, and read the line that names it": (
        r"pytest\.raises\([^)]*match|returncode == [12]\b|code == 1\b"
    ),
    "read results that others published, or the table made of them": (r"real_logs|/test_published"),
    "run what others wrote: checkers, viewers, browsers, models": (
        r"transformers|networks\.|tf_models|compliance\.|official\.|rcp_checker|chromium|browser\b"
        r"|TraceProcessor|dftracer|dlio|\bfio\b|beam_options|systemd"
    ),
    "start several processes or devices on one machine": (
        r"^tests/training/test_(faults|distributed)|workers\(|environment_of|meet_all"
    ),
    "use an object store on loopback": r"^tests/stores/",
    "export a step for jax and compilers": r"^tests/portable/|exported_program",
}
FOLDERS = [ROOT / "tests", *ROOT.glob("*/tests")]
"""Of the harness, and of the other products."""
_BEGIN, _END = "<!-- counted -->\n", "<!-- end -->\n"


def tests() -> list[str]:
    """The path and the text of every test function, decorators included."""
    found = []
    for path in sorted(path for folder in FOLDERS for path in folder.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                own = [path.relative_to(ROOT).as_posix(), *lines[first - 1 : node.end_lineno]]
                found.append("\n".join(own))
    return found


def counts() -> dict[str, int]:
    """Kind -> number of tests; and of all tests."""
    functions = tests()
    found = {kind: sum(bool(re.search(p, t)) for t in functions) for kind, p in KINDS.items()}
    return {"there are": len(functions)} | found


def rounded_down(number: int) -> int:
    """To a multiple of 5, from 100 on of 50, from 1000 on of 100."""
    unit = min(100, max(1, 5 * 10 ** (len(str(number)) - 2)))
    return number // unit * unit


def table() -> str:
    """The lines of the page."""
    rows = [f"| {rounded_down(number)} | {kind} |\n" for kind, number in counts().items()]
    return "".join(["| at least | tests that |\n|---|---|\n", *rows])


def main() -> None:
    """Writes the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(_BEGIN)
    after = rest.partition(_END)[2]
    new = before + _BEGIN + table() + _END + after
    PAGE.write_text(new, encoding="utf-8")
    print(f"{PAGE}: {'the table is as it was' if new == text else 'the table is written again'}")


if __name__ == "__main__":
    main()
