"""Checks of the data: names, sizes and manifests before the clock starts, the content after."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from mlperf_bert.data import manifest, tfrecord, validity
from mlperf_bert.files import paths
from mlperf_bert.mlperf import ledger, rules
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.training.setup import ERROR, WARNING, Inspection, Setup

_OFFICIAL_DATA = {
    "random_seed": rules.DATA_SEED,
    "dupe_factor": rules.DUPE_FACTOR,
    "masked_lm_prob": rules.MASKED_LM_PROB,
}
"""Parameter of the data generation -> its value in the rules; config.py checks the lengths."""
_MOST_BAD_FILES = 5
"""Of those whose first record is bad, so many are named; the cause is often one for all."""


def check_data(found: Inspection) -> None:
    """Compares files with the manifests in their folders, by name and size; reads no content."""
    for folder in sorted({paths.location(path).parent for path in found.files}, key=str):
        try:
            found.manifests[folder] = manifest.load(folder)
        except (ValueError, OSError) as error:
            found.add(ERROR, str(error))
    for folder, made in found.manifests.items():
        if made is None:
            found.add(
                WARNING,
                f"{folder}: no {manifest.NAME}, so it is unknown whether the data are complete; "
                "create_pretraining_data.py --output_dir=... writes one",
            )
        else:
            _check_parts(found, folder, made)
            _check_parameters(found, folder, made)
    _check_evaluation_size(found)


def check_at_first_touch(
    run: Run, log: MlperfLog, setup: Setup, *, say: Callable[[str], None]
) -> None:
    """Opens the data for the first time: the clock runs, and the log is not on disk yet.

    Raises:
      ValueError: the first record of a kind does not fit, or a file is damaged.
    """
    with run.ledger.counting(ledger.INPUT_WAIT):
        for path in [setup.files[0], *setup.eval_files[:1]]:
            validity.check_first_record(path, setup.limits)
        found = sum(tfrecord.count_records(path) for path in setup.eval_files)
    if not setup.eval_files:
        return
    limit = (setup.config.max_eval_steps or found) * setup.config.eval_batch_size
    run.eval_samples(min(found, limit))
    if issue := rules.departure_of_evaluation(found):
        say(rules.open_division([issue]))
        log.declare_open()


def _check_parts(found: Inspection, folder: paths.Location, made: manifest.Manifest) -> None:
    given = _names_in(folder, found.files)
    if left_out := sorted(set(made.parts) - given):
        found.add(
            WARNING,
            f"--input_file leaves out {len(left_out)} of {len(made.parts)} parts of "
            f"{folder / manifest.NAME}, such as {left_out[0]}",
        )
    names = sorted(given & set(made.parts))
    sizes = paths.in_parallel(paths.size_bytes, [str(folder / name) for name in names])
    for name, size in zip(names, sizes):
        if size != made.parts[name].bytes:
            found.add(
                ERROR,
                f"{folder / name}: {size} bytes, {manifest.NAME} says {made.parts[name].bytes}; "
                "make this part again",
            )


def _check_parameters(found: Inspection, folder: paths.Location, made: manifest.Manifest) -> None:
    shape = dataclasses.asdict(found.config.shape)
    for name, value in made.parameters.items():
        if name in shape and value != shape[name]:
            found.add(
                ERROR,
                f"--{name}={shape[name]}, but {folder} was made with {name}={value}; give that",
            )


def _check_evaluation_size(found: Inspection) -> None:
    """A file with the name of the published evaluation shard should have its size."""
    expected = manifest.PUBLISHED_RECORD_BYTES["eval_10k"]
    for path in found.eval_files:
        if Path(path).name == "eval_10k" and (size := paths.size_bytes(path)) != expected:
            found.add(
                WARNING,
                f"{path}: {size} bytes, the published one has {expected}; make it with "
                f"pick_eval_samples.py --num_examples_to_pick={rules.NUM_EVAL_SAMPLES}",
            )


def check_first_records(found: Inspection) -> None:
    """Reads the first record of every file; a run reads one of the first files before it trains."""
    assert found.bert_config is not None
    limits = found.config.shape.for_model(found.bert_config)

    def problem_of(path: str) -> str | None:
        try:
            validity.check_first_record(path, limits)
        except (ValueError, OSError) as error:
            return str(error)
        return None

    problems = paths.in_parallel(problem_of, [*found.files, *found.eval_files])
    bad = [problem for problem in problems if problem and problem not in found.errors]
    for problem in bad[:_MOST_BAD_FILES]:
        found.add(ERROR, problem)
    if (left := len(bad) - _MOST_BAD_FILES) > 0:
        found.add(ERROR, f"{left} more files are bad in their first record")


def count_evaluation_examples(found: Inspection) -> None:
    """Compares the number of evaluation examples with the rules; reads all their files."""
    counts = [found.attempt(tfrecord.count_records, path) for path in found.eval_files]
    if None not in counts and (issue := rules.departure_of_evaluation(sum(counts))):
        found.add(
            WARNING,
            f"not a submission to the closed division: {issue}; make --eval_input_file with "
            "pick_eval_samples.py",
        )


def departures_of_data(
    files: list[str], manifests: dict[paths.Location, manifest.Manifest | None]
) -> list[rules.Issue]:
    """Every difference from the published data, according to the manifests of the folders."""
    issues = []
    for folder, made in manifests.items():
        if made is None:
            continue
        if not made.is_whole:
            first = f"the first {made.parameters['examples_per_part']} of each"
            issues.append(rules.Issue("input_file", "all examples of every part", first))
        given = _names_in(folder, files)
        if missing := len(manifest.PUBLISHED_PARTS - (given & set(made.parts))):
            num_published = len(manifest.PUBLISHED_PARTS)
            present = f"{num_published - missing} of them in {folder}"
            issues.append(
                rules.Issue("input_file", f"the {num_published} published parts", present)
            )
        for name, expected in _OFFICIAL_DATA.items():
            if (value := made.parameters.get(name, expected)) != expected:
                issues.append(rules.Issue(f"{name} of the data", expected, value))
    return issues


def _names_in(folder: paths.Location, files: list[str]) -> set[str]:
    found = (paths.location(path) for path in files)
    return {path.name for path in found if path.parent == folder}
