"""Instances with more masked tokens than one buffer holds: prints their number and their digest.

With NUMBA_DISABLE_JIT=1 the loops run as plain Python, where numpy refuses to write past an end.
"""

import hashlib

import numpy as np

from mlperf_bert.data.instances import InstanceConfig, Instances, make_instances
from mlperf_bert.data.sentences import Text


def text_of(num_documents: int, num_sentences: int, length: int, *, numbers) -> Text:
    """A text of 200 words with numbers from 5 on."""
    return Text(
        tokens=numbers.randint(5, 205, size=num_documents * num_sentences * length).astype("i4"),
        sentence_starts=np.arange(num_documents * num_sentences + 1) * length,
        document_starts=np.arange(num_documents + 1) * num_sentences,
    )


def made() -> Instances:
    """The instances of numbers in place of words."""
    numbers = np.random.RandomState(7)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{n}" for n in range(200))]
    text = text_of(10, 30, 9, numbers=numbers)
    config = InstanceConfig(
        max_seq_length=64, max_predictions_per_seq=30, masked_lm_prob=0.5, dupe_factor=40,
        short_seq_prob=0.1, random_seed=12345,
    )  # fmt: skip
    return make_instances(text, {word: number for number, word in enumerate(words)}, config)


def digest(instances: Instances) -> str:
    """The MD5 of all arrays."""
    arrays = (array.astype(np.int64).tobytes() for array in instances)
    return hashlib.md5(b"".join(arrays)).hexdigest()


if __name__ == "__main__":
    instances = made()
    print(instances.mask_starts[-1], digest(instances))
