"""The last clean-up stage: many small files become parts of about the same size.

A quirk of the reference, kept because the data depend on it: the sizes of the raw files wiki_xx,
which are not read here, decide when a part is full, not those of the cleaned files.
"""

from collections.abc import Iterable

from mlperf_bert.data.stages import read_text
from mlperf_bert.files import paths
from mlperf_bert.files.whole import written_beside

BYTES_PER_MB = 1024 * 1024
PARTS_PER_WORKER = 1000


def plan(files: list[str], *, block_size_mb: float, num_workers: int) -> dict[int, list[str]]:
    """Part number -> the files that go into it.

    Each worker packs a run of neighbouring files; the parts of worker w start at number 1000 * w.
    A file larger than a block makes a whole part (the reference fails on such a first file).
    """
    per_worker = -(-len(files) // num_workers)
    sizes = dict(zip(files, paths.in_parallel(paths.size_bytes, files)))
    parts: dict[int, list[str]] = {}
    for worker in range(num_workers):
        number, used_bytes = PARTS_PER_WORKER * worker, 0
        last = worker == num_workers - 1
        for path in files[worker * per_worker : None if last else (worker + 1) * per_worker]:
            if used_bytes and block_size_mb * BYTES_PER_MB < used_bytes + sizes[path]:
                number, used_bytes = number + 1, 0
            parts.setdefault(number, []).append(path)
            used_bytes += sizes[path]
    return parts


def part_name(number: int, num_outputs: int) -> str:
    """part-00007-of-00500."""
    return f"part-{number:05d}-of-{num_outputs:05d}"


def require_no_other_parts(folder: paths.Location, names: Iterable[str]) -> None:
    """Raises ValueError for parts of another run, which results/part-* would match."""
    with paths.failures_named(folder):
        present = {path.name for path in folder.glob("part-*")}
    if foreign := sorted(present - set(names)):
        raise ValueError(
            f"{folder}: holds {foreign[0]}, which this run does not make ({len(foreign)} such "
            "files); remove them or choose another --out_dir"
        )


def write_part(output_path: str, input_paths: list[str]) -> None:
    """Joins files; of two line ends at the end of one, one is dropped."""
    with written_beside(output_path) as output:
        for path in input_paths:
            text = read_text(path, encoding="utf-8-sig")
            output.write((text[:-1] if text.endswith("\n\n") else text).encode())
