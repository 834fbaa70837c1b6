"""A split of a task's data; it has a file of its own, because both kinds of task make splits.

Shapes: F=features (of GLUE one for each example, of SQuAD one for each window), S=sequence.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

TRAIN = "train"
Features = dict[str, np.ndarray]
"""int32 input_ids, input_mask, segment_ids [F, S] and, where labelled, labels [F] (int32 classes or
float32 scores), or start_positions and end_positions [F]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """Examples and their features."""

    examples: Sequence[Any]
    features: Features

    @functools.cached_property
    def sha256(self) -> str:
        """The digest of the features, and of the examples with their answers."""
        digest = hashlib.sha256(repr(self.examples).encode())
        for name, values in sorted(self.features.items()):
            digest.update(name.encode() + values.tobytes())
        return digest.hexdigest()
