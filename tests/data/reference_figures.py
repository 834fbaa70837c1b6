"""What the reference made of generated text, recorded, and the same figures of other files."""

import hashlib
from pathlib import Path

from mlperf_bert.data import tfrecord, validity

# Recorded from the reference on sentences(1) and vocabulary(1): flags -> outputs.
GENERATED = {
    "--max_seq_length=32 --max_predictions_per_seq=5 --dupe_factor=3": [
        (1022, 321930, "b8fa6bf7613a2386e20118b25b52e558688bf47ce68f6cbb1820112537772c7b")
    ],
    "--max_seq_length=128 --max_predictions_per_seq=20 --dupe_factor=2": [
        (468, 329940, "decc879951af1705ad8783f76d226045292012d71fbbac55468b5dd76a308349")
    ],
    "--max_seq_length=32 --max_predictions_per_seq=5 --dupe_factor=1 "
    "--preserve_unused_tokens --nodo_lower_case": [
        (169, 53235, "14bf0cf460884477528e97c3c7d7468244c5c2e44d4df1f6834cbb218510d61d"),
        (168, 52920, "187eba82d4714ec6e9298ebf9bb0d06f6640583b4bcd9de51d9340a656c7b7ee"),
    ],
}


def content_digest(path) -> str:
    """SHA-256 of the content, whatever the order of the features in the file.

    Over the examples in file order, over the feature names in sorted order: the name, then the
    values as little-endian int64 (float32 for the weights).
    """
    digest = hashlib.sha256()
    for frame in tfrecord.read_frames(path):
        for name, values in sorted(validity.decode(frame.record).items()):
            digest.update(name.encode())
            digest.update(values.tobytes())
    return digest.hexdigest()


def md5(path) -> str:
    return hashlib.md5(Path(path).read_bytes()).hexdigest()


def figures(path) -> tuple[int, int, str]:
    return tfrecord.count_records(path), path.stat().st_size, content_digest(path)
