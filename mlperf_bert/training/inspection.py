"""The close look of --check, where no clock starts: it reads data and weights too.

It begins with the checks of every run, and ends with notes on what is active.
"""

from collections.abc import Mapping
from typing import Any

from mlperf_bert.checkpoints import reading, state
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.data import tfrecord, validity
from mlperf_bert.files import paths
from mlperf_bert.input import checked, pipeline
from mlperf_bert.messages import lasting
from mlperf_bert.mlperf import caches, rules
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import build, checks, offline
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.output import Origin, OutputDirectory
from mlperf_bert.training.setup import Findings, Setup

_INITIAL_ACCURACY_TOLERANCE = 0.001
_MOST_BAD_FILES = 5
"""The most files with a bad first record that are named; often all have one cause."""


def problems_of_files(values: Mapping[str, Any]) -> list[str]:
    """Problems of the files that flags name, if the flags together make no configuration."""
    findings = Findings()
    for flag in ("input_file", "eval_input_file"):
        with findings.collecting():
            if path := values.get(flag):
                pipeline.expand_input(path, flag=flag)
    readers = {"bert_config_file": BertConfig.from_json_file, "init_checkpoint": StoredCheckpoint}
    for flag, read in readers.items():
        with findings.collecting():
            if path := values.get(flag):
                read(path)
    return findings.errors


@lasting("checking")
def inspect_closely(config: RunConfig, *, measure_initial_accuracy: bool) -> Setup:
    """Checks for --check, where no clock starts: also reads data, and reports what is active.

    Args:
      measure_initial_accuracy: evaluate the initial checkpoint, which takes as long as an
        evaluation does.

    Returns: what the run would be made of, with what was found.
    """
    setup = _inspect_with_output(config)
    findings = setup.findings
    with findings.collecting():
        _count_evaluation_examples(setup)
    with findings.collecting():
        _check_first_records(setup)
    for list_departures in checks.DEPARTURES:
        with findings.collecting():
            for departure in list_departures(setup):
                findings.add_warning(f"not a submission to the closed division: {departure}")
    if not config.drop_caches:
        way = caches.obstacle() or "add --drop_caches to empty them"
        findings.add_note(f"the log will not say that the file caches were emptied; {way}")
    if config.cluster:
        findings.add_note(
            f"checked in one of {config.cluster.size} processes, without the others; a run first "
            "compares flags, data and software of all"
        )
    findings.add_note(_active_devices(setup))
    findings.add_note(f"energy: {config.energy_meter().plan}")
    if not findings.errors:
        if setup.devices.mesh and config.emulate_step_seconds is None:
            from mlperf_bert.training import fit  # no other runtime loads jax

            findings.append(fit.finding_of(build.build_programs(setup, seed=0)))
        if measure_initial_accuracy and not findings.errors:
            with findings.collecting():
                _measure_initial_accuracy(setup)
    return setup


def _inspect_with_output(config: RunConfig) -> Setup:
    """Checks as `checks.inspect`, and the directory; reads the weights to begin with."""
    output = OutputDirectory.of(config)
    obstacle, latest_step, newest = None, None, ""
    try:
        output.require_available()
        # Asked first: whatever its logs say, a run that has a checkpoint needs no initial one.
        if output.earlier_record:
            latest_step, newest = state.newest_checkpoint(config.output_dir)
        output.beginning(config.seed, latest_step=latest_step)
    except (ValueError, OSError) as error:
        obstacle = error
    # After a problem of the directory the rest is checked too: all problems are told at once.
    setup = checks.inspect(config, has_checkpoint=latest_step is not None)
    findings = setup.findings
    if not obstacle:
        with findings.collecting():
            output.require_same_devices(setup.num_replicas)
    with findings.collecting():
        checks.check_saving(setup)
    with findings.collecting():
        if obstacle:
            raise obstacle
    if not findings.errors:
        with findings.collecting():
            _check_weights(setup, newest)
    # A resumed run is asked in spite of other errors: it says which file has changed.
    if not findings.errors or (not obstacle and output.earlier_record):
        with findings.collecting():
            Origin(setup, output, seed=0).read_evaluation_data()
    return setup


def _check_weights(setup: Setup, newest: str) -> None:
    """Reads the weights that the run would load: damage and NaN do not show in the index.

    Those are of its `newest` checkpoint, or, if that is empty, of the initial one.
    """
    stored = StoredCheckpoint(newest) if newest else setup.initial_checkpoint
    if stored is None:
        return
    model = setup.bert_config
    shapes = checks.shapes_of(model) if newest else checks.shapes_to_load(stored, model)
    reading.require_fitting(stored, shapes)
    for weight, shape in shapes.items():
        stored.read(weight, shape)


def _check_first_records(setup: Setup) -> None:
    """Reads the first record of every file; a run reads one of the first files before it trains."""
    findings, limits = setup.findings, setup.limits

    def problem_of(path: str) -> str | None:
        try:
            validity.require_valid_record(tfrecord.first_frame(path), limits)
        except (ValueError, OSError) as error:
            return str(error)
        return None

    problems = paths.in_parallel(problem_of, [*setup.files, *setup.eval_files])
    # A record that was refused before, as the first of its kind, is not named twice.
    bad = [problem for problem in problems if problem and problem not in findings.errors]
    for problem in bad[:_MOST_BAD_FILES]:
        findings.add_error(problem)
    if (left := len(bad) - _MOST_BAD_FILES) > 0:
        findings.add_error(f"{left} more files are bad in their first record")
    for path in () if bad else (*setup.files[:1], *setup.eval_files[:1]):
        with findings.collecting():
            if hint := checked.hint_of_weights(path):
                findings.add_warning(hint)


def _count_evaluation_examples(setup: Setup) -> None:
    """Compares the number of evaluation examples with the rules; reads all their files."""
    counts = []
    for path in setup.eval_files:
        with setup.findings.collecting():
            counts.append(tfrecord.count_records(path))
    whole = counts and len(counts) == len(setup.eval_files)
    if whole and (departure := rules.departure_of_evaluation(sum(counts))):
        setup.findings.add_warning(
            f"not a submission to the closed division: {departure}; make --eval_input_file with "
            "pick_eval_samples.py",
        )


def _active_devices(setup: Setup) -> str:
    """What the run will use: devices, runtime, precision, XLA."""
    config = setup.config
    chosen, compiled = "no devices", f"--jit_compile={config.jit_compile}"
    with setup.findings.collecting():
        chosen, compiled = str(setup.devices), str(config.compilation)
    return f"active: {chosen}; computing in {config.precision}, weights in float32; {compiled}"


def _measure_initial_accuracy(setup: Setup) -> None:
    config = setup.config
    if not (config.init_checkpoint and setup.eval_files):
        raise ValueError("the initial accuracy needs --init_checkpoint and --eval_input_file")
    model, evaluator = offline.model_to_evaluate(setup.bert_config, setup.devices)
    # A run that resumes has not opened it.
    stored = setup.initial_checkpoint or StoredCheckpoint(config.init_checkpoint)
    reading.refuse_output_of_a_run(stored)
    reading.load_initial_weights(pretrainer.trained_variables(model), stored)
    with checked.checked_input(setup.eval_files, setup.limits):
        accuracy = evaluator.evaluate(build.evaluation_batches(setup)).masked_lm_accuracy
    expected = rules.INITIAL_MASKED_LM_ACCURACY
    is_expected = abs(accuracy - expected) <= _INITIAL_ACCURACY_TOLERANCE
    say = setup.findings.add_note if is_expected else setup.findings.add_warning
    say(
        f"the initial checkpoint has masked-LM accuracy {accuracy:.5f}; the official one on the "
        f"official evaluation examples has {expected}",
    )
