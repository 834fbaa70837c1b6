"""The fourth clean-up stage: articles for evaluation are taken out of the training text.

Quirks of the reference, kept because the data depend on them: each file has its own random
generator, seeded with seed + 13 * its index over the sorted files, so the split depends on the
exact set of files; the empty "article" after the last blank line counts, and can be picked.
"""

import hashlib
import random

from mlperf_bert.data.stages import read_text
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole

SEED_STEP = 13


def num_test_articles_of(file_index: int, num_files: int, num_test_articles: int) -> int:
    """How many of all test articles come from a file: the total is spread evenly."""
    share = num_test_articles * 1.0
    return int((file_index + 1) * share / num_files) - int(file_index * share / num_files)


def separate(text: str, num_test_articles: int, seed: int) -> tuple[list[str], list[str]]:
    """Splits a file's articles into (training articles, test articles), both in file order.

    Raises:
      ValueError: more test articles are asked for than the file has.
    """
    articles = text.split("\n\n")
    if num_test_articles > len(articles):
        raise ValueError(
            f"{num_test_articles} test articles wanted, but the file has {len(articles)} articles; "
            "lower --num_test_articles (NUM_TEST_ARTICLES=... for process_wiki.sh) or give more "
            "text"
        )
    generator = random.Random(seed)
    picked: set[int] = set()
    while len(picked) < num_test_articles:
        picked.add(int(generator.random() * len(articles)))
    train = [article for index, article in enumerate(articles) if index not in picked]
    return train, [articles[index] for index in sorted(picked)]


def write_stage_4(
    input_path: str, output_path: str, num_test_articles: int, seed: int
) -> list[str]:
    """Stage .4 of one file; returns its test articles.

    Raises:
      ValueError: no such file, no regular one, bytes that are not UTF-8, or too few articles.
    """
    text = read_text(input_path, keep_line_ends=True)
    try:
        train, test = separate(text, num_test_articles, seed)
    except ValueError as error:
        raise ValueError(f"{input_path}: {error}") from error
    write_whole(output_path, "".join(f"{article}\n\n" for article in train))
    return test


def write_test_set(articles: list[str], prefix: str) -> None:
    """Writes `prefix`.txt with the articles and `prefix`.md5 with a line for each."""
    paths.make_folder(paths.location(prefix).parent)
    write_whole(f"{prefix}.txt", "".join(f"{article}\n\n" for article in articles))
    digests = (hashlib.md5(article.rstrip().encode()).hexdigest() for article in articles)
    write_whole(f"{prefix}.md5", "".join(f"{digest}\n" for digest in digests))
