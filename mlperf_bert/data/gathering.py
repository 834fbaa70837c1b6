"""The last clean-up stages: articles for evaluation are taken out, and files become equal parts.

The quirks of the reference, at their lines, are kept because the data depend on them.
"""

import hashlib
import random
from pathlib import Path

from mlperf_bert.data.stages import read_text
from mlperf_bert.files import errors
from mlperf_bert.files.whole import BYTE_ORDER_MARK, write_whole, written_beside

BYTES_PER_MB = 1024 * 1024
PARTS_PER_WORKER = 1000


def plan(files: list[str], *, block_size_mb: float, num_workers: int) -> dict[int, list[str]]:
    """Part number -> the files that go into it.

    Each worker packs a run of neighbouring files.
    """
    per_worker = -(-len(files) // num_workers)
    # Quirk: the sizes of the raw files wiki_xx, which are not read here, decide when a part is
    # full, not those of the cleaned files.
    sizes = {path: Path(path).stat().st_size for path in files}
    parts: dict[int, list[str]] = {}
    for worker in range(num_workers):
        # Quirk: more workers give other parts, numbered from 1000 times the worker's number.
        number, used_bytes = PARTS_PER_WORKER * worker, 0
        for path in files[worker * per_worker : (worker + 1) * per_worker]:
            # A file larger than a block is a part (the reference fails on such a first file).
            if used_bytes and block_size_mb * BYTES_PER_MB < used_bytes + sizes[path]:
                number, used_bytes = number + 1, 0
            parts.setdefault(number, []).append(path)
            used_bytes += sizes[path]
    return parts


def part_name(number: int, num_outputs: int) -> str:
    """part-00007-of-00500."""
    return f"part-{number:05d}-of-{num_outputs:05d}"


def write_part(output_path: str, input_paths: list[str]) -> None:
    """Joins files."""
    with written_beside(output_path) as output:
        for path in input_paths:
            text = read_text(path).removeprefix(BYTE_ORDER_MARK)
            # Quirk: of two line ends at the end of a file, one is dropped.
            output.write((text[:-1] if text.endswith("\n\n") else text).encode())


# Each file has its own generator, seeded with seed + 13 * its index over the sorted files: the
# split depends on the exact set of files.
SEED_STEP = 13


def num_test_articles_of(file_index: int, num_files: int, num_test_articles: int) -> int:
    """How many of all test articles come from a file: the total is spread evenly."""
    share = num_test_articles * 1.0  # the reference computes in float
    return int((file_index + 1) * share / num_files) - int(file_index * share / num_files)


def separate(text: str, num_test_articles: int, seed: int) -> tuple[list[str], list[str]]:
    """Splits a file's articles into (training articles, test articles), both in file order."""
    # Quirk: the empty "article" behind the last blank line counts, and can be picked.
    articles = text.split("\n\n")
    if num_test_articles > len(articles):
        raise ValueError(
            f"{num_test_articles} test articles wanted, but the file has {len(articles)} articles; "
            "lower --num_test_articles (NUM_TEST_ARTICLES=... for process_wiki.sh) or give more "
            "text"
        )
    generator = random.Random(seed)
    picked: set[int] = set()
    # Quirk: an article that is drawn twice costs a draw more.
    while len(picked) < num_test_articles:
        picked.add(int(generator.random() * len(articles)))
    train = [article for index, article in enumerate(articles) if index not in picked]
    return train, [articles[index] for index in sorted(picked)]


def write_stage_4(
    input_path: str, output_path: str, num_test_articles: int, seed: int
) -> list[str]:
    """Stage .4 of one file; returns its test articles."""
    text = read_text(input_path, keep_line_ends=True)
    with errors.named(input_path):
        train, test = separate(text, num_test_articles, seed)
    write_whole(output_path, "".join(f"{article}\n\n" for article in train))
    return test


def write_test_set(articles: list[str], prefix: str) -> None:
    """Writes `prefix`.txt with the articles and `prefix`.md5 with a line for each."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    write_whole(f"{prefix}.txt", "".join(f"{article}\n\n" for article in articles))
    digests = (hashlib.md5(article.rstrip().encode()).hexdigest() for article in articles)
    write_whole(f"{prefix}.md5", "".join(f"{digest}\n" for digest in digests))
