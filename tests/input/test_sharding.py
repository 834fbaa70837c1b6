"""Each training example is read by exactly one worker, and a worker finds its place again."""

import collections
import itertools

import pytest

from mlperf_bert.input import pipeline
from mlperf_bert.input.pipeline import ExampleLimits
from tests.input import numbered_examples

LIMITS = ExampleLimits(
    max_seq_length=4, max_predictions_per_seq=2, vocab_size=60, type_vocab_size=2
)
NUM_EXAMPLES = 60


@pytest.fixture(scope="module")
def parts(tmp_path_factory) -> list[str]:
    """Five files of twelve examples."""
    folder = tmp_path_factory.mktemp("parts")
    return numbered_examples.write(folder, LIMITS, files=5, examples_per_file=12)


def stream(parts, num_examples: int, **given):
    """The first so many examples of a worker, in the order in which it reads them."""
    dataset = pipeline.training_batches(parts, LIMITS, batch_size=1, **given)
    read = itertools.islice(dataset.as_numpy_iterator(), num_examples)
    return [int(batch["input_ids"][0, 0]) for batch in read]


@pytest.mark.parametrize("num_files, num_workers", [(5, 1), (5, 2), (5, 3), (5, 5), (1, 3), (2, 4)])
@pytest.mark.parametrize("seed", [None, 7])
def test_each_example_is_read_by_exactly_one_worker(parts, num_files, num_workers, seed):
    files, total = parts[:num_files], 12 * num_files
    by_file = seed is not None and num_files >= num_workers
    read = []
    for worker in range(num_workers):
        own_files = len(files[worker::num_workers])
        share = 12 * own_files if by_file else len(range(worker, total, num_workers))
        read += stream(files, share, seed=seed, num_workers=num_workers, worker=worker)
    assert collections.Counter(read) == collections.Counter(range(total))


def test_unshuffled_batches_of_workers_together_are_those_of_one(parts):
    alone = stream(parts, NUM_EXAMPLES, seed=None)
    shares = [stream(parts, 20, seed=None, num_workers=3, worker=worker) for worker in range(3)]
    assert [example for step in zip(*shares) for example in step] == alone


@pytest.mark.parametrize("seed", [None, 7])
def test_a_worker_goes_on_where_it_was(parts, seed):
    given = {"seed": seed, "num_workers": 2, "worker": 1}
    whole = stream(parts, 100, **given)  # more than an epoch
    assert stream(parts, 60, **given, first_example=40) == whole[40:]
