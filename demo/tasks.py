"""Write small tasks about the encyclopedia's world in the formats of GLUE and SQuAD.

    python -m demo.tasks --seed=1 --output_dir=build/demo-finetune/data

The articles are new ones about the same world: with another seed than the encyclopedia's, nobody
could know its countries.

- RTE: does the second paragraph belong to the article of the first?
- CoLA: a sentence, or one whose words between the first and the last stand in random order.
- SQuAD 1.1: questions about one paragraph of an article.
"""

import argparse
import json
import random
import re
import sys
from pathlib import Path

from demo.encyclopedia import articles_with_facts
from demo.facts import WORDS, Facts
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import words_with_home

NUM_EXAMPLES = {"train": 1500, "dev": 500, "test": 200}
NUM_QUESTIONS = {"train": 600, "dev": 300}  # more would be easy without pre-training
_LEFT_OUT = "test"  # SQuAD's is hidden

# Kind of article -> number of a paragraph, a question, and the fact that answers it. All wordings
# of the paragraph hold that fact.
_QUESTIONS: dict[str, list[tuple[int, str, str]]] = WORDS["questions"]

Article = tuple[str, Facts, list[str]]


def write(output_dir: Path, *, seed: int) -> list[Path]:
    """Write all files below the output directory; return them."""
    written = []
    for split, num_examples in NUM_EXAMPLES.items():
        rng = random.Random(f"tasks {split} {seed}")
        found = articles_with_facts(seed, rng)
        articles = [next(found) for _ in range(num_examples)]
        files = {
            f"RTE/{split}.tsv": _entailment(articles, rng, split),
            f"CoLA/{split}.tsv": _acceptability(articles, rng, split),
        }
        if split != _LEFT_OUT:
            files[f"SQuAD/{split}-v1.1.json"] = _questions(
                articles[: NUM_QUESTIONS[split]], rng, split
            )
        for name, text in files.items():
            path = output_dir / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
            written.append(path)
    return written


def _entailment(articles: list[Article], rng: random.Random, split: str) -> str:
    lines = ["index\tsentence1\tsentence2" + ("" if split == _LEFT_OUT else "\tlabel")]
    for number, (_, _, paragraphs) in enumerate(articles):
        belongs = rng.random() < 0.5
        second, label = paragraphs[1], "entailment"
        if not belongs:
            other = rng.randrange(len(articles) - 1)
            other += other >= number  # never its own article
            second, label = articles[other][2][1], "not_entailment"
        line = f"{number}\t{paragraphs[0]}\t{second}"
        lines.append(line if split == _LEFT_OUT else f"{line}\t{label}")
    return "".join(f"{line}\n" for line in lines)


def _acceptability(articles: list[Article], rng: random.Random, split: str) -> str:
    lines = ["index\tsentence"] if split == _LEFT_OUT else []
    for number, (_, _, paragraphs) in enumerate(articles):
        sentence = rng.choice(re.split(r"(?<=\.) ", rng.choice(paragraphs)))
        is_good = rng.random() < 0.5
        if not is_good:
            first, *between, last = sentence.split(" ")
            sentence = " ".join([first, *rng.sample(between, len(between)), last])
        mark = "" if is_good else "*"
        line = f"{number}\t" if split == _LEFT_OUT else f"demo\t{is_good:d}\t{mark}\t"
        lines.append(line + sentence)
    return "".join(f"{line}\n" for line in lines)


def _questions(articles: list[Article], rng: random.Random, split: str) -> str:
    data = []
    for number, (kind, facts, paragraphs) in enumerate(articles):
        place, question, fact = rng.choice(_QUESTIONS[kind])
        context, answer = paragraphs[place], facts[fact]
        begin = context.index(answer)
        asked = {
            "id": f"{split}-{number}",
            "question": question.format_map(facts),
            "answers": [{"text": answer, "answer_start": begin}],
        }
        entry = {"context": context, "qas": [asked]}
        data.append({"title": facts["name"], "paragraphs": [entry]})
    return json.dumps({"version": "1.1", "data": data}, indent=1) + "\n"


@ends_in_one_line("demo.tasks")
def main() -> None:
    """Write the files and say where."""
    parser = argparse.ArgumentParser(prog="python -m demo.tasks")
    parser.add_argument("--seed", type=int, required=True, help="that of the encyclopedia")
    parser.add_argument("--output_dir", type=Path, required=True)
    given = parser.parse_args(words_with_home())
    for path in write(given.output_dir, seed=given.seed):
        print(path)


if __name__ == "__main__":
    sys.exit(main())
