"""HTML pages that need nothing from outside: no script, font or file.

Reports on submissions and on traces share a base, a style sheet and the look of their pictures.
"""

import functools
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_FOLDER = Path(__file__).parent / "templates"


class Card(NamedTuple):
    """One figure at the head of a page."""

    label: str
    value: str
    note: str
    good: bool | None = None
    """Colours the value; None leaves it as it is."""


def render(template: str, **values: object) -> str:
    """Returns a page of templates/; every value is escaped unless the template says `safe`.

    Raises:
      jinja2.UndefinedError: the template asks for a value that is not given.
    """
    return _templates().get_template(template).render(values)


@functools.cache
def _templates() -> Environment:
    return Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
