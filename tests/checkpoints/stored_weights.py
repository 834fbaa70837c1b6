"""What a TF1 checkpoint holds beside slots."""

import numpy as np

from mlperf_bert.checkpoints.reading import StoredCheckpoint


def read_weights(prefix: str) -> dict[str, np.ndarray]:
    """The weights of a TF1 name-based checkpoint, by TF1 name."""
    stored = StoredCheckpoint(prefix)
    wanted = [name for name in sorted(stored.shapes) if name.startswith(("bert/", "cls/"))]
    is_slot = {name: name.rpartition("/")[0] in stored.shapes for name in wanted}
    return {name: stored.tensor(name) for name in wanted if not is_slot[name]}


def assert_same_bits(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        assert found[name].tobytes() == value.tobytes(), name
