"""The forms in which the same articles can come: WikiExtractor's text, and documents."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

DOCUMENTS = (".jsonl", ".jsonl.zst", ".json.gz", ".parquet")


def as_text(articles: list[dict[str, str]]) -> str:
    """A file of WikiExtractor."""
    return "".join(
        '<doc id="{id}" url="{url}" title="{title}">\n{title}\n\n{text}\n\n</doc>\n'.format(
            **article
        )
        for article in articles
    )


def write(path: Path, articles: list[dict[str, str]], **options) -> Path:
    """Writes articles in the form that the suffix of `path` names; `options` are Parquet's."""
    lines = "".join(f"{json.dumps(article)}\n" for article in articles).encode()
    if path.name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(articles), path, **options)
    elif path.name.endswith(".zst"):
        path.write_bytes(zstandard.compress(lines[:200]) + zstandard.compress(lines[200:]))
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines[:200]) + gzip.compress(lines[200:]))
    elif path.name.endswith((".jsonl", ".json")):
        path.write_bytes(lines)
    else:
        path.write_bytes(as_text(articles).encode())
    return path
