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
from mlperf_bert.training.checks import Findings, Inspection, Setup
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.output import Origin, OutputDirectory

_INITIAL_ACCURACY_TOLERANCE = 0.001
_MOST_BAD_FILES = 5
"""So many files whose first record is bad are named; the cause is often one for all."""


def problems_of_files(values: Mapping[str, Any]) -> list[str]:
    """What is wrong with the files that flags name, where no configuration can be made of all."""
    findings = Findings()
    for flag in ("input_file", "eval_input_file"):
        if path := values.get(flag):
            findings.attempt(pipeline.expand_input, path, flag=flag)
    if path := values.get("bert_config_file"):
        findings.attempt(BertConfig.from_json_file, path)
    if path := values.get("init_checkpoint"):
        findings.attempt(StoredCheckpoint, path)
    return findings.errors


@lasting("checking")
def inspect_closely(config: RunConfig, *, measure_initial_accuracy: bool) -> Inspection:
    """For --check, where no clock starts: also reads data, and reports what is active.

    Args:
      measure_initial_accuracy: evaluate the initial checkpoint, which takes as long as an
        evaluation does.

    Raises:
      ValueError: this is one of several processes, which would wait for the others.
    """
    if config.cluster:
        raise ValueError("--check runs in one process: unset TF_CONFIG, or start it without srun")
    inspection = _inspect_with_output(config)
    findings, model = inspection.findings, inspection.bert_config
    if inspection.eval_files:
        _count_evaluation_examples(inspection)
    if model:
        _check_first_records(inspection, config.shape.for_model(model))
        for issue in inspection.departures:
            findings.doubt(f"not a submission to the closed division: {issue}")
    if not config.drop_caches:
        way = caches.obstacle() or "add --drop_caches to empty them"
        findings.remark(f"the log will not say that the file caches were emptied; {way}")
    findings.remark(_active_devices(inspection))
    findings.remark(f"energy: {config.energy_meter().plan}")
    if not findings.errors:
        setup = inspection.setup()
        if setup.devices.mesh and config.emulate_step_seconds is None:
            from mlperf_bert.training import fit  # no other runtime loads jax

            with build.reading_compilation_cache(config.compilation_cache_dir):
                findings.append(fit.finding_of(build.build_programs(setup, seed=0)))
        if measure_initial_accuracy and not findings.errors:
            findings.attempt(_measure_initial_accuracy, setup, findings)
    return inspection


def _inspect_with_output(config: RunConfig) -> Inspection:
    """Also checks the directory, and reads the weights with which the run would begin there."""
    output = OutputDirectory.of(config)
    obstacle, latest_step, newest = None, None, ""
    try:
        output.require_available()
        # First: whatever its logs say, a run that has a checkpoint needs no initial one.
        if output.before:
            latest_step, newest = state.newest_checkpoint(config.output_dir)
        output.beginning(config.seed, latest_step=latest_step)
    except (ValueError, OSError) as error:
        obstacle = str(error)
    # Whatever is in the way of the directory, the rest is checked: all problems are told at once.
    goes_on = latest_step is not None
    inspection = checks.inspect(config, goes_on=goes_on)
    findings = inspection.findings
    if not obstacle and inspection.devices:
        findings.attempt(output.require_same_devices, inspection.devices.num_replicas)
    checks.check_saving(inspection)
    if obstacle:
        findings.refuse(obstacle)
    if not findings.errors:
        _check_weights(inspection.setup(), newest, findings)
    # For a run that resumes also beside other errors: it says which file is not the same.
    if not findings.errors or (not obstacle and output.before):
        origin = findings.attempt(Origin, inspection, output, seed=0, goes_on=goes_on)
        if origin:
            findings.attempt(origin.read_evaluation_data)
    return inspection


def _check_weights(setup: Setup, newest: str, findings: Findings) -> None:
    """Reads the weights that the run would load: damage and NaN do not show in the index.

    Those are of its `newest` checkpoint, or, if that is empty, of the initial one.
    """
    opened = setup.initial_checkpoint
    stored = findings.attempt(StoredCheckpoint, newest) if newest else opened
    if stored is None:
        return
    model = setup.bert_config
    shapes = checks.shapes_of(model) if newest else checks.shapes_to_load(stored, model)
    findings.attempt(reading.require_fitting, stored, shapes)
    if not findings.errors:
        for weight, shape in shapes.items():
            if findings.attempt(stored.read, weight, shape) is None:
                break


def _check_first_records(inspection: Inspection, limits: validity.ExampleLimits) -> None:
    """Reads the first record of every file; a run reads one of the first files before it trains."""
    findings = inspection.findings

    def problem_of(path: str) -> str | None:
        try:
            validity.require_valid_record(tfrecord.first_frame(path), limits)
        except (ValueError, OSError) as error:
            return str(error)
        return None

    problems = paths.in_parallel(problem_of, [*inspection.files, *inspection.eval_files])
    # A record that was refused before, as the first of its kind, is not told twice.
    bad = [problem for problem in problems if problem and problem not in findings.errors]
    for problem in bad[:_MOST_BAD_FILES]:
        findings.refuse(problem)
    if (left := len(bad) - _MOST_BAD_FILES) > 0:
        findings.refuse(f"{left} more files are bad in their first record")
    for path in () if bad else (*inspection.files[:1], *inspection.eval_files[:1]):
        if hint := findings.attempt(checked.hint_of_weights, path):
            findings.doubt(hint)


def _count_evaluation_examples(inspection: Inspection) -> None:
    """Compares the number of evaluation examples with the rules; reads all their files."""
    counts = [
        inspection.findings.attempt(tfrecord.count_records, path) for path in inspection.eval_files
    ]
    if None not in counts and (issue := rules.departure_of_evaluation(sum(counts))):
        inspection.findings.doubt(
            f"not a submission to the closed division: {issue}; make --eval_input_file with "
            "pick_eval_samples.py",
        )


def _active_devices(inspection: Inspection) -> str:
    """What the run will use: devices, runtime, precision, XLA."""
    config, chosen = inspection.config, inspection.devices
    compiled = config.compilation if chosen else f"--jit_compile={config.jit_compile}"
    return (
        f"active: {chosen or 'no devices'}; computing in {config.precision}, weights in float32; "
        f"{compiled}"
    )


def _measure_initial_accuracy(setup: Setup, findings: Findings) -> None:
    config = setup.config
    if not (config.init_checkpoint and setup.eval_files):
        raise ValueError("the initial accuracy needs --init_checkpoint and --eval_input_file")
    model, evaluator = offline.model_to_evaluate(setup.bert_config, setup.devices)
    # A run that resumes has not opened it.
    stored = setup.initial_checkpoint or StoredCheckpoint(config.init_checkpoint)
    reading.refuse_output_of_a_run(stored)
    reading.load_initial_weights(pretrainer.trained_variables(model), stored)
    with checked.input_of(setup.eval_files, setup.limits):
        accuracy = evaluator.evaluate(build.evaluation_batches(setup)).masked_lm_accuracy
    expected = rules.INITIAL_MASKED_LM_ACCURACY
    is_expected = abs(accuracy - expected) <= _INITIAL_ACCURACY_TOLERANCE
    say = findings.remark if is_expected else findings.doubt
    say(
        f"the initial checkpoint has masked-LM accuracy {accuracy:.5f}; the official one on the "
        f"official evaluation examples has {expected}",
    )
