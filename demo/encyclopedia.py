"""Write a miniature encyclopedia in the format of WikiExtractor, a function of its seed.

    python -m demo.encyclopedia --seed=1 --num_articles=6000 --output_dir=build/demo/text

The articles follow the grammar in articles.txt. Names, years and wordings are drawn for each
article alone: one that is set aside for evaluation cannot be known by heart from training.
"""

import argparse
import random
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from demo.facts import Facts, make_facts, make_world
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments

NUM_FILES = 8
GRAMMAR = Path(__file__).with_name("articles.txt")
_CHANCE_TO_LEAVE_OUT = 0.3

# A kind of article has paragraphs, a paragraph sentences, a sentence wordings to choose from. The
# first wording of a sentence that may be left out starts with "? ".
Sentence = tuple[str, ...]
Paragraph = tuple[Sentence, ...]


def read_grammar() -> Mapping[str, tuple[Paragraph, ...]]:
    """Returns the paragraphs of every kind of article, by kind."""
    _, *kinds = GRAMMAR.read_text(encoding="utf-8").split("\n= ")
    grammar = {}
    for text in kinds:
        kind, _, body = text.partition("\n")
        grammar[kind] = tuple(
            tuple(tuple(sentence.split("\n| ")) for sentence in re.split(r"\n(?!\| )", paragraph))
            for paragraph in body.strip().split("\n\n")
        )
    return grammar


def articles(seed: int, num_articles: int) -> Iterator[tuple[str, str]]:
    """Yields title and text; paragraphs of the text are separated by blank lines."""
    rng = random.Random(f"encyclopedia {seed}")
    world = make_world(rng)
    grammar = read_grammar()
    for _ in range(num_articles):
        kind = rng.choice(tuple(grammar))
        facts = make_facts(kind, world, rng)
        paragraphs = [_write_paragraph(paragraph, facts, rng) for paragraph in grammar[kind]]
        yield facts["name"], "\n\n".join(paragraphs)


def write(output_dir: Path, *, seed: int, num_articles: int) -> list[Path]:
    """Writes wiki_00, wiki_01, ... with the articles dealt out in turn; returns the files."""
    if num_articles < NUM_FILES:
        raise ValueError(f"num_articles={num_articles}: at least {NUM_FILES}, one for each file")
    documents: list[list[str]] = [[] for _ in range(NUM_FILES)]
    for number, (title, text) in enumerate(articles(seed, num_articles)):
        url = f"https://example.org/wiki?curid={number}"
        documents[number % NUM_FILES].append(
            f'<doc id="{number}" url="{url}" title="{title}">\n{title}\n\n{text}\n\n</doc>\n'
        )
    output_dir.mkdir(parents=True, exist_ok=True)
    paths = [output_dir / f"wiki_{number:02d}" for number in range(NUM_FILES)]
    for path, entries in zip(paths, documents, strict=True):
        path.write_text("".join(entries), encoding="utf-8")
    return paths


def _write_paragraph(paragraph: Paragraph, facts: Facts, rng: random.Random) -> str:
    written = []
    for first_wording, *others in paragraph:
        if first_wording.startswith("? ") and rng.random() < _CHANCE_TO_LEAVE_OUT:
            continue
        wording = rng.choice([first_wording.removeprefix("? "), *others])
        text = wording.format_map(facts)
        written.append(text[0].upper() + text[1:])
    return " ".join(written)


@ends_in_one_line("demo.encyclopedia")
def main() -> None:
    """Writes the files and says how much it is."""
    parser = argparse.ArgumentParser(prog="python -m demo.encyclopedia")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num_articles", type=int, required=True)
    parser.add_argument("--output_dir", type=Path, required=True)
    arguments = parser.parse_args(expanded_arguments())
    files = write(arguments.output_dir, seed=arguments.seed, num_articles=arguments.num_articles)
    size_bytes = sum(path.stat().st_size for path in files)
    print(
        f"{arguments.num_articles} articles, {size_bytes / 1e6:.1f} MB, {files[0]} ... {files[-1]}"
    )


if __name__ == "__main__":
    sys.exit(main())
