"""TFRecords equal the reference's, and bad input is told in one line. Plain Python, seconds.

Two oracles, both by size, number of examples and digest of the content (the order of a protobuf map
is free, so bytes may differ): the recorded figures of the real sample, and those of generated text,
which the reference's scripts gave in their own stack (Python 3.7.16, TensorFlow 1.15.5).
"""

import re
import shutil
import subprocess
import sys

import pytest

from mlperf_bert.data import parts
from mlperf_bert.data.examples import expand_input, write_examples
from mlperf_bert.data.instances import InstanceConfig
from mlperf_bert.data.tokenization import Tokenizer
from tests.data.generated_wiki import sentences, vocabulary
from tests.data.making import clean_up_sample
from tests.data.reference_figures import GENERATED, figures
from tests.helpers import starts

GENERATED_37_PICKED_OF_1022 = (
    37, 11655, "92cd7c55b7736ab8919077a9b048f635d0b987f69cdb9822b670cd16de48e71e"
)  # fmt: skip
LENGTHS = {"max_seq_length": 32, "max_predictions_per_seq": 5}


def run(script, *words, check=True, **flags) -> subprocess.CompletedProcess:
    given = [f"--{name}={value}" for name, value in flags.items()]
    return starts.run([sys.executable, script, *words, *given], check=check)


def create(work, *words, check=True, **flags) -> subprocess.CompletedProcess:
    """Makes examples of the generated text, in `work`/out if no other is named."""
    given = {"input_file": work / "text", "vocab_file": work / "vocab.txt"}
    if "output_dir" not in flags:
        given["output_file"] = work / "out"
    return run("create_pretraining_data.py", *words, check=check, **given | flags)


@pytest.fixture
def generated(tmp_path):
    (tmp_path / "text").write_bytes(sentences(1).encode())
    (tmp_path / "vocab.txt").write_bytes(vocabulary(1).encode())
    return tmp_path


@pytest.mark.parametrize("flags", GENERATED)
def test_generated_text(generated, flags):
    expected = GENERATED[flags]
    outputs = [generated / f"out{number}" for number in range(len(expected))]
    done = create(generated, *flags.split(), output_file=",".join(map(str, outputs)))
    assert [figures(path) for path in outputs] == expected
    num_bytes = sum(size_bytes for _, size_bytes, _ in expected)
    told = (
        rf" examples, {num_bytes:,} bytes in {outputs[0]}.*\nmade in (\S+) s, (\d+) MB/s written\n"
    )
    seconds, rate = map(float, re.search(told, done.stdout).groups())
    # Both are rounded.
    assert rate - 0.5 <= num_bytes / 1e6 / max(seconds - 0.05, 1e-3)
    assert rate + 0.5 >= num_bytes / 1e6 / (seconds + 0.05)
    for output, (num_examples, *_) in zip(outputs, expected):
        data_set = parts.read(generated)[output.name]
        assert data_set.inputs == {"text": parts.describe(generated / "text")}
        assert data_set.files == {output.name: parts.describe(output, examples=num_examples)}
    if len(expected) == 1 and expected[0][0] == 1022:
        run(
            "pick_eval_samples.py",
            input_tfrecord=outputs[0],
            output_tfrecord=generated / "picked",
            num_examples_to_pick=37,
            **LENGTHS,
        )
        assert figures(generated / "picked") == GENERATED_37_PICKED_OF_1022


def test_a_text_that_is_given_twice_is_told_and_read_twice(generated):
    (generated / "copy").write_bytes((generated / "text").read_bytes())
    (generated / "link").symlink_to(generated / "text")
    told = f"{generated}/link is the same file as {generated}/text; its text is read twice"
    for again, is_told in (("link", True), ("copy", False)):
        names = f"{generated}/text,{generated}/{again}"
        done = create(generated, input_file=names, output_file=generated / f"out_{again}")
        warning = f"warning: --input_file: {told}: name each file once\n"
        assert (warning in done.stderr) == is_told
    assert (generated / "out_link").read_bytes() == (generated / "out_copy").read_bytes()


@pytest.mark.gate
def test_real_sample(shared, tmp_path):
    work = shutil.copytree(shared / "data" / "wiki_sample", tmp_path / "wiki")
    golden = clean_up_sample(shared, work)
    for name, expected in golden["tfrecords"].items():
        output = tmp_path / name
        if "num_examples_to_pick" in expected:
            run(
                "pick_eval_samples.py",
                input_tfrecord=tmp_path / "eval.txt",
                output_tfrecord=output,
                num_examples_to_pick=expected["num_examples_to_pick"],
            )
        else:
            run(
                "create_pretraining_data.py",
                input_file=work / "results" / name.removesuffix(" at 128"),
                output_file=output,
                vocab_file=shared / "data" / "vocab.txt",
                max_seq_length=expected["max_seq_length"],
                max_predictions_per_seq=expected["max_predictions_per_seq"],
                dupe_factor=expected["dupe_factor"],
            )
        found = dict(zip(("examples", "bytes", "sha256"), figures(output)))
        assert found == {key: expected[key] for key in found}, name


@pytest.mark.parametrize("name", ["eval.txt", "eval.md5", "parts.json", "part-0.4"])
def test_what_lies_beside_the_parts_is_refused(tmp_path, name):
    (tmp_path / "results").mkdir()
    for file in ("part-0", name):
        (tmp_path / "results" / file).touch()
    with pytest.raises(
        ValueError,
        match=rf"--input_file=.*results/\*: matches {name} too, written beside the texts; give a "
        "glob of the parts alone, such as results/part-",
    ):
        expand_input(f"{tmp_path}/results/*")
    assert expand_input(f"{tmp_path}/results/{name}") == [f"{tmp_path}/results/{name}"]
    assert expand_input(f"{tmp_path}/results/part-?") == [f"{tmp_path}/results/part-0"]


def hints(tmp_path, capsys, text: str | bytes, words: list[str], **tokenizer) -> list[str]:
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]))
    (tmp_path / "text").write_bytes(text if isinstance(text, bytes) else text.encode())
    config = InstanceConfig(
        max_seq_length=16, max_predictions_per_seq=2, dupe_factor=1,
        masked_lm_prob=0.15, short_seq_prob=0.1, random_seed=1,
    )  # fmt: skip
    tokens = Tokenizer(str(tmp_path / "vocab.txt"), **tokenizer)
    write_examples([str(tmp_path / "text")], [tmp_path / "out"], tokens, config)
    told = capsys.readouterr().err.splitlines()
    return [line.removeprefix(f"hint: {tmp_path}/text: ") for line in told if "hint: " in line]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("One.\n\nTwo.\n\nThree.\n\n", "every document is one line, so all next sentences are"),
        ("One.\nTwo.\nThree.\n", "the text is one document, so the next sentences that shall be"),
    ],
)
def test_a_layout_that_spoils_next_sentences_is_told(tmp_path, capsys, text, hint):
    told, _ = hints(tmp_path, capsys, text, ["[MASK]", "one", "two", "three"])
    assert told.startswith(hint) and "one sentence a line, and a blank line after each" in told


@pytest.mark.parametrize(
    ("text", "message"), [(b"ok\n\xff", "byte 3 is not UTF-8"), (b"\n \n\n", "no document")]
)
def test_bad_input_is_one_line_and_leaves_no_output(tmp_path, capsys, text, message):
    with pytest.raises(ValueError, match=message) as refused:
        hints(tmp_path, capsys, text, ["[MASK]"])
    assert len(str(refused.value).splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"text", "vocab.txt"}


KNOWN = "the a\nthe the\n\na the\nthe a\n"


def test_a_text_that_the_vocabulary_does_not_know_is_told(tmp_path, capsys):
    words = ["[MASK]", "the", "a", "c", "##c"]
    assert hints(tmp_path, capsys, KNOWN * 99, words) == []
    [hint] = hints(tmp_path, capsys, KNOWN + "cab x xac\n", words)
    assert hint == (
        "3 of 11 tokens (27.3%) are [UNK], which the vocabulary does not know, and it lacks 12.0% "
        "of the characters; compare the text's language and --do_lower_case with the vocabulary's"
    )
    [hint] = hints(tmp_path, capsys, KNOWN.replace("the", "The"), words, do_lower_case=False)
    assert hint.startswith("5 of 8 tokens (62.5%) are [UNK]")
    # A long word of other letters is one token of many.
    [hint] = hints(tmp_path, capsys, KNOWN * 25 + "\u0e01" * 99, words)
    assert hint.startswith("1 of 201 tokens (0.5%) are [UNK]") and "lacks 18.0% of the" in hint


@pytest.mark.parametrize(
    "before, message",
    [
        ('<doc id="1" url="u" title="The">\n', "2 lines begin with <doc id=, as WikiExtractor"),
        ('<mediawiki xmlns="x">\n', "is a dump of XML; extract and clean it first"),
    ],
)
def test_a_text_that_nobody_has_cleaned_is_told(tmp_path, capsys, before, message):
    told = hints(tmp_path, capsys, before + KNOWN + before + KNOWN, ["[MASK]", "the", "a"])
    assert told[0].startswith(message)
