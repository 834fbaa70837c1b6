"""Logs of runs of any times, as a vendor writes them."""

from pathlib import Path

from tests.mlperf.example_log import write_lines


def write_log(
    path: Path,
    minutes: float,
    *,
    samples: float = 2_000_000,
    batch: int = 448,
    tokens: int | None = 512,
    division: str = "closed",
    benchmark: str = "bert",
    status: str = "success",
    accuracy: float = 0.72,
    seed: int | None = None,
) -> Path:
    """Write the log of one run."""
    stop_ms = round(60_000 * minutes)
    lines = [
        (0, "submission_benchmark", benchmark, {}),
        (0, "submission_division", division, {}),
        (0, "global_batch_size", batch, {}),
        (0, "run_start", None, {}),
        (stop_ms, "eval_accuracy", accuracy, {"epoch_num": samples}),
        (stop_ms, "run_stop", None, {"status": status}),
    ]
    if seed is not None:
        lines.append((0, "seed", seed, {}))
    if tokens:
        lines.append((0, "max_sequence_length", tokens, {}))
    return write_lines(path, *lines)


def write_results(folder: Path, all_minutes, **others) -> Path:
    """Write result_0.txt, result_1.txt, ... of so many minutes, as a vendor hands them in."""
    for number, minutes in enumerate(all_minutes):
        write_log(folder / f"result_{number}.txt", minutes, seed=number, **others)
    return folder
