"""A small Wikipedia dump, laid out as Wikimedia's: one tag a line."""

from xml.sax.saxutils import escape

TEMPLATES = {
    "Template:Born": "{{{1}}} {{#if:{{{2|}}}|in {{{2}}}|somewhere}}",
    "Template:Nested": "<noinclude>Documentation.</noinclude>({{Born|{{{year|1900}}}|{{{2|}}}}})",
    "Template:As of": "As of {{CURRENTYEAR}}",
    "Module:Nothing": "return {}",
}
ARTICLES = {
    "Ada": "'''Ada''' &ndash; {{Nested|year=1815|London}} was a ''mathematician''"
    "<ref name=a>A book, p. 3.</ref><ref name=a/>.\n\n"
    "{| class=wikitable\n! Head\n|-\n| cell {{Born|1}} || {| inner |}\n|}\n"
    "[[File:Ada.png|thumb|A [[link]] in a caption]]She met [[Charles Babbage|Babbage]]s.\n"
    "== Work ==\n* one\n* two\n# three\n=== Empty ===\n== Later ==\nLast words; 5 &lt; 6.\n",
    "Dates": "It is {{CURRENTYEAR}}-{{CURRENTMONTH}}-{{CURRENTDAY}}, {{CURRENTTIME}} {{As of}}.\n"
    "Hour {{CURRENTHOUR}}, local {{LOCALDAY}}, {{#time:Y}}, {{NAMESPACE}}, {{FULLPAGENAME}}.\n",
    "Tools & more": "<!-- a comment -->Text <nowiki>[[kept]]</nowiki> and <math>x^2</math>, "
    "<code>y</code>, H<sub>2</sub>O. [http://example.org A site] and [https://example.org].\n"
    "{{Unknown|x}} {{#switch:b|a=1|b=2}} {{#expr:1+2}} {{lc:ABC}}\n"
    "[[Category:Tools]]\n[[de:Werkzeug]]\n",
    "Zürich": "Zürich (東京) is a town.&nbsp;It &amp;amp; others: \"quoted\" ''\"so\"''.\n\n"
    "{{Infobox\n| name = Zürich\n}}\n:indented\nThe end.\n",
}
NAMESPACES = {"Talk": 1, "Template": 10, "Category": 14, "Module": 828}


def article_text(number: int) -> str:
    """The wikitext of a numbered article; some have templates."""
    sentence = f"Article {number} has {{{{Born|{1800 + number}|Town {number % 7}}}}} a sentence. "
    return f"'''Number {number}''' {sentence * (number % 50 * 20 + 1)}\n\nThe end of {number}.\n"


def page(
    number: int, title: str, text: str, *, namespace: int = 0, redirect: str = "",
    version: str = "0.10",
) -> str:  # fmt: skip
    """One <page>."""
    title = escape(title)
    to = f'    <redirect title="{escape(redirect)}" />\n' if redirect else ""
    escaped = escape(text, {'"': "&quot;"})
    new = version == "0.11"
    origin = f"      <origin>{number + 5000}</origin>\n" if new else ""
    attributes = f'bytes="{len(text.encode())}" sha1="x" ' if new else ""
    return (
        f"  <page>\n    <title>{title}</title>\n    <ns>{namespace}</ns>\n    <id>{number}</id>\n"
        f"{to}    <revision>\n      <id>{number + 5000}</id>\n"
        "      <timestamp>2020-01-01T00:00:00Z</timestamp>\n      <contributor>\n"
        "        <username>Someone</username>\n        <id>7</id>\n      </contributor>\n"
        f"{origin}      <model>wikitext</model>\n      <format>text/x-wiki</format>\n"
        f'      <text {attributes}xml:space="preserve">{escaped}</text>\n'
        "      <sha1>x</sha1>\n    </revision>\n  </page>\n"
    )


def pages(num_articles: int = 0, *, version: str = "0.10") -> list[str]:
    """The pages above and so many more, templates in between and at the end."""
    texts = {
        **ARTICLES,
        **{f"Number {number}": article_text(number) for number in range(num_articles)},
    }
    found = [
        page(3, "Lovelace", "#REDIRECT [[Ada]]", redirect="Ada", version=version),
        page(4, "Talk:Ada", "Not an article.", namespace=1, version=version),
        page(5, "Category:Tools", "Nor is this.", namespace=14, version=version),
    ]
    number = 10
    for title, text in texts.items():
        found.append(page(number, title, text, version=version))
        number += 1
        if number == 12:
            found.append(page(900, "Template:Old", "x", namespace=10, redirect="Template:Born"))
    for number, (title, text) in enumerate(TEMPLATES.items(), 1000):
        namespace = NAMESPACES[title.partition(":")[0]]
        found.append(page(number, title, text, namespace=namespace, version=version))
    return found


def head(*, version: str = "0.10") -> str:
    """What stands before the first page."""
    schema = f"http://www.mediawiki.org/xml/export-{version}/"
    names = "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n'
        for name, key in NAMESPACES.items()
    )
    return (
        f'<mediawiki xmlns="{schema}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        f'xsi:schemaLocation="{schema} {schema[:-1]}.xsd" version="{version}" '
        'xml:lang="en">\n  <siteinfo>\n    <sitename>Wikipedia</sitename>\n'
        "    <dbname>enwiki</dbname>\n"
        "    <base>https://en.wikipedia.org/wiki/Main_Page</base>\n"
        "    <generator>MediaWiki 1.35.0-wmf.11</generator>\n    <case>first-letter</case>\n"
        '    <namespaces>\n      <namespace key="0" case="first-letter" />\n'
        f"{names}    </namespaces>\n  </siteinfo>\n"
    )


def dump(num_articles: int = 0, *, version: str = "0.10") -> str:
    """A whole dump."""
    return head(version=version) + "".join(pages(num_articles, version=version)) + "</mediawiki>\n"
