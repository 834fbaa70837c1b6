"""The first two clean-up stages: WikiExtractor's output to plain lines of text.

Both equal the reference byte for byte: .1 drops the <doc> tags and titles, .2 is an ordered list of
text rules. The order of the rules matters, and so do their quirks.
"""

import re

from mlperf_bert.data import articles, stages
from mlperf_bert.data.stages import lines_of, require_sentences
from mlperf_bert.files import errors
from mlperf_bert.files.whole import read_regular_file, write_whole, written_beside


def drop_tags_and_titles(text: str) -> str:
    """Stage .1: a blank line for every <doc ...> and its title line; </doc> and empty lines go."""
    kept, skip_next = [], False
    for line in lines_of(text):
        if skip_next:
            skip_next = False
        # Quirk: any line with "<doc" counts as a tag, and takes the line after it along.
        elif "<doc" in line:
            skip_next = True
            kept.append("\n")
        elif "</doc>" not in line and len(line) > 1:
            kept.append(line)
    return "".join(kept)


def apply_rules(text: str) -> str:
    """Stage .2: drops and edits by the rules below, one after the other, on each line.

    No rule sees the "<doc" and "</doc" that documents have in their own text.
    """
    if "\0" in articles.with_own_tags(text):
        raise ValueError("a NUL character; remove it (tr -d '\\000'; in JSON it is \\u0000)")
    if text and not text.endswith("\n"):
        text += "\n"  # grep completes the last line
    # Each rule needs one of these three characters: most lines need no rule.
    edited = (
        _edit(line) if "<" in line or "[" in line or "alt=" in line else line
        for line in lines_of(text)
    )
    return articles.with_own_tags("".join(edited))


def _edit(line: str) -> str:
    for literal, rule, replacement in _RULES:
        if literal in line:
            line = rule.sub(replacement, line)
    return line


def write_stage_1(input_path: str, output_path: str) -> None:
    """Stage .1 from file to file."""
    write_whole(output_path, drop_tags_and_titles(stages.read_text(input_path)))


def write_stage_2(input_path: str, output_path: str) -> None:
    """Stage .2 from file to file."""
    # Read as bytes: sed keeps \r, and bytes that are not UTF-8.
    text = read_regular_file(input_path).decode("utf-8", "surrogateescape")
    require_sentences(text, input_path)
    with errors.named(input_path):
        cleaned = apply_rules(text)
    with written_beside(output_path) as output:
        output.write(cleaned.encode("utf-8", "surrogateescape"))


def _rule(literal: str, pattern: str, replacement: str = "") -> tuple[str, re.Pattern, str]:
    """A rule that is tried only where `literal` occurs; classes never cross a line's end."""
    return literal, re.compile(pattern, re.MULTILINE), replacement


def _tags(*names: str) -> list[tuple[str, re.Pattern, str]]:
    """Rules that remove <name> and </name>, as written."""
    tags = (tag for name in names for tag in (f"<{name}>", f"</{name}>"))
    return [_rule(tag, re.escape(tag)) for tag in tags]


_LINK = _rule("[[", r"\[\[([^]|[\n]*)\]\]", r"\1")
_PIPED_LINK = _rule("[[", r"\[\[[^]|[\n]*\|([^]|[\n]*)\]\]", r"\1")

_RULES = [
    _rule("<doc ", r"^<doc [^>\n]*>\n"),
    _rule("[[Category:", r"^.*\[\[Category:[^][\n]*\]\].*\n"),
    # Each rule runs twice: the second pass finds the tags that the first one uncovered.
    _LINK,
    _LINK,
    _PIPED_LINK,
    _PIPED_LINK,
    _rule("ile:", r"\[\[:*[Ff]ile:[^][\n]*\]\]"),
    _rule("edia:", r"\[\[[Mm]edia:[^][\n]*\]\]"),
    _rule("mage:", r"\[\[[Ii]mage:[^][\n]*\]\]"),
    _rule("[", r"\[([^]|[\n]*)\]", r"\1"),
    _rule("[[", r"\[\[([^][\n]*)\]\]"),
    _rule("alt=", r"alt="),
    _rule("</doc>", r"</doc>", "\r"),
    # Quirk: what stands after the tag's name stays, the closing bracket of the tag included.
    _rule("<chem", r"<chem([^<\n]*)</chem>", r"\1"),
    _rule("<ins", r"<ins([^<\n]*)</ins>", r"\1"),
    _rule("<, ref ", r"<, ref ([^<\n]*)</ref>"),
    _rule("<includeonly", r"<includeonly([^<\n]*)</includeonly>"),
    _rule("<graph", r"<graph([^<\n]*)</graph>"),
    # Quirk: these reach as far as the last "/>" of the line with no backslash on the way.
    _rule("<section", r"<section([^\\\n]*)/>"),
    _rule("<meta", r"<meta([^\\\n]*)/>"),
    _rule("<hr", r"<hr([^\\\n]*)/>"),
    _rule("<gallery", r"<gallery([^>\n]*)>"),
    _rule("<ref", r"<ref([^<\n]*)</ref>"),
    _rule("<ref", r"<ref([^>\n]*)>"),
    _rule("<http", r"<http([^>\n]*)>"),
    _rule("<Ref", r"<Ref([^>\n]*)>"),
    # Quirk: a backslash ends the match here too (sed keeps the one of "\/" inside brackets).
    _rule("<mapframe ", r"<mapframe ([^\\/\n]*)/>"),
    _rule("<mapframe", r"<mapframe([^>\n]*)>"),
    _rule("</mapframe>", r"</mapframe>"),
    *_tags("poem", "math", "ref"),
    _rule("<div", r"<div([^>\n]*)>"),
    _rule("</div", r"</div([^>\n]*)>"),
    *_tags("sup", "br", "BR", "Br", "del", "nowiki", "NOWIKI", "onlyinclude", "includeonly"),
    *_tags("small", "chem", "noinclude", "gallery"),
    _rule("<graph>{", r"<graph>\{"),
    _rule("<graph>", r"<graph>"),
    _rule("}</graph>", r"\}</graph>"),
    _rule("</graph>", r"</graph>"),
    _rule("</references>", r"</references>"),
    _rule("<poem ", r"<poem ([^>\n]*)>"),
]
