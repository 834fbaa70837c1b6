"""A user's mistakes, each as one printable line."""

from collections.abc import Sequence


class Problems(ValueError):
    """Several mistakes found at once; its text has a line for each."""

    def __init__(self, problems: Sequence[str]):
        """Takes one problem or more."""
        self.problems = tuple(map(printable, problems))
        listed = [f"{len(problems)} problems:", *(f"  - {problem}" for problem in self.problems)]
        super().__init__("\n".join(listed) if len(problems) > 1 else self.problems[0])


def printable(text: str, *, at_most: int | None = None) -> str:
    r"""Escapes the control characters of names, "a\nb" -> "a\\nb"; keeps `at_most` characters."""
    escaped = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return escaped[:at_most]


def as_lines(error: Exception) -> str:
    """The text of an error, in one line, or one for each of several problems."""
    return str(error) if isinstance(error, Problems) else printable(str(error))
