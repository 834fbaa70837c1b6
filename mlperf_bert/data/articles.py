"""Documents become files as WikiExtractor leaves them, the one form that the clean-up begins with.

So the same articles give the same parts, however they came: the clean-up and its quirks are the
same, and the sizes of these files, by which parts are packed, are too.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from mlperf_bert.data import stages
from mlperf_bert.data.documents import SUFFIXES, read_documents
from mlperf_bert.files.whole import written_beside

FILE_BYTES = 1 << 20
"""WikiExtractor's default; a file is a unit of work of every stage."""
_NAME = "wiki_{:06d}"  # process_wiki.sh continues with */wiki_??????
# Stage .1 would take a document's own "<doc" and "</doc" for tags. A NUL, which no dump can hold,
# marks them until stage .2 has applied its rules for these tags too.
_LIKE_A_TAG = re.compile(r"(</?\0*)(?=doc)")
_KEPT_APART = re.compile(r"(</?\0*)\0(?=doc)")


def folders_of(files: Iterable[str], out_dir: Path) -> dict[str, Path]:
    """Input file -> the folder for its text, which has its name without the suffix."""
    folders: dict[str, Path] = {}
    for path in files:
        name = path.rsplit("/", 1)[-1]
        suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)
        if suffix is None:
            raise ValueError(f"{path}: expected a name that ends with {', '.join(SUFFIXES)}")
        folders[path] = out_dir / name.removesuffix(suffix)
    made = {folder.name for folder in folders.values()}
    stages.require_no_others(out_dir, "*/wiki_*", made, variable="TEXT_DIR")
    return folders


def require_text(files: Iterable[str]) -> None:
    """Raises ValueError for documents, whose lines would pass for text."""
    for path in files:
        if path.endswith(SUFFIXES):
            raise ValueError(
                f"{path}: documents, not text; run extract_documents.py first, or process_wiki.sh "
                "with a glob that ends like their names"
            )


def write_articles(input_path: str, folder: Path, text_column: str) -> None:
    """Writes wiki_000000 and so on, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    documents = read_documents(input_path, text_column=text_column)
    number = -1
    for number, content in enumerate(in_files(map(_article, documents))):
        with written_beside(folder / _NAME.format(number)) as output:
            output.writelines(content)
    if number < 0:
        raise ValueError(f"{input_path}: holds no document; leave it out, or fetch it again")
    if (following := folder / _NAME.format(number + 1)).exists():
        raise ValueError(f"{following}: this run does not make it; remove {folder} and run again")


def in_files(articles: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The articles of each file: FILE_BYTES at most, or one article."""
    content: list[bytes] = []
    size_bytes = 0
    for article in articles:
        if content and size_bytes + len(article) > FILE_BYTES:
            yield content
            content, size_bytes = [], 0
        content.append(article)
        size_bytes += len(article)
    if content:
        yield content


def _article(document: dict[str, str]) -> bytes:
    """The tag, the title and the text, with the blank lines of WikiExtractor."""
    # Tag and title have a line each: stage .1 drops the line behind <doc>, and only that.
    names = (document[name] for name in ("id", "url", "title"))
    number, url, title = (re.sub(r"[\r\n]+", " ", name) for name in names)
    tag = f'<doc id="{number}" url="{url}" title="{title}">'
    text = _LIKE_A_TAG.sub("\\1\0", document["text"])
    return f"{tag}\n{title}\n\n{text}\n\n</doc>\n".encode()


def with_own_tags(text: str) -> str:
    """The text with the documents' own "<doc" and "</doc" as the documents have them."""
    return _KEPT_APART.sub(r"\1", text) if "\0" in text else text
