"""Offline evaluation: every saved checkpoint of a run, oldest first, each exactly once.

Without a run, the checkpoint that is given. It may run during the training, in another process:
then it waits for the next checkpoint. The results are kept by evaluations.py.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import tensorflow as tf

from mlperf_bert.checkpoints import names, reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.checkpoints.state import complete_checkpoints, saved_checkpoints
from mlperf_bert.data import parts
from mlperf_bert.files import paths
from mlperf_bert.files.locks import held, lock_of
from mlperf_bert.input import checked, pipeline
from mlperf_bert.messages import Progress, lasting
from mlperf_bert.mlperf import joining, rules
from mlperf_bert.mlperf.log_reader import LOG_NAME, RECORD_NAME, RESULT_LOG, is_end, logs_of_run
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.contract import EvaluatorContract
from mlperf_bert.programs.tf_trainer import Evaluator
from mlperf_bert.training import checks, devices
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.devices import Devices
from mlperf_bert.training.evaluations import (
    RESULTS_LINES,
    RESULTS_TEXT,
    data_of,
    read_evaluations,
    record_evaluation,
    require_same_data,
)
from mlperf_bert.training.events import tell_of_evaluation
from mlperf_bert.training.output import read_record
from mlperf_bert.training.setup import vocabulary_of

SECONDS_BETWEEN_LOOKS = 2.0


def evaluate(config: RunConfig) -> str:
    """Evaluates the given checkpoint, or those of the run in the output directory.

    The examples are those of `eval_input_file`, else those of `input_file`. The given one,
    `init_checkpoint`, counts where no run has begun, or if it is one of the run: a run's evaluator
    may be given all flags of its training.

    Returns: one line for the user.
    """
    directory, prefix = paths.location(config.output_dir), config.init_checkpoint
    if prefix and not _holds_a_run(directory):
        # Checked before minutes of work: an evaluator may be started before its training.
        _say(
            f"{directory} holds no run: --init_checkpoint={prefix} is evaluated; to wait for the "
            "checkpoints of a training, leave it out"
        )
        return _evaluate_given(config, prefix, directory)
    if prefix and _named_step(prefix, saved_checkpoints(str(directory))) is None:
        _say(
            f"{directory} holds a run: its checkpoints are evaluated, not --init_checkpoint="
            f"{prefix}, for which another --output_dir is needed"
        )
    evaluate_checkpoints(config)
    return write_result(config.output_dir, target_accuracy=config.target_accuracy)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def evaluate_checkpoints(config: RunConfig) -> dict[int, Evaluation]:
    """Evaluates until the target, the checkpoint of `num_train_steps`, or the end of the run.

    Results go to eval_results.txt (the newest, in the reference's format) and eval_results.jsonl
    (a line for each), both in the output directory.

    Returns: step -> evaluation, for the checkpoints that this call has evaluated.
    """
    directory = paths.location(config.output_dir)
    with paths.failures_named(directory):
        if not directory.is_dir():
            raise ValueError(
                f"--output_dir={directory}: no such directory; start the training first, or give "
                "--init_checkpoint to evaluate that one"
            )
    with _locked(directory), _evaluator(config) as (evaluate_one, data):
        progress = Progress(total=config.num_train_steps, unit="steps", description="eval")
        evaluations = {}
        reached = _has_reached(directory, config.target_accuracy)
        for step, path in _pending(config, directory, only_named=reached):
            evaluations[step] = evaluate_one(path)
            # Recorded first, so that it is not evaluated again, whatever ends this process.
            record_evaluation(directory, step, evaluations[step], data=data)
            tell_of_evaluation(
                evaluations[step],
                when=f"step {step}",
                target=config.target_accuracy,
                progress=progress,
            )
            if _reaches(step, evaluations[step], config.target_accuracy):
                break
        if not evaluations:
            progress.line(f"nothing new to evaluate; see {directory / RESULTS_LINES}")
        progress.close()
        return evaluations


def _locked(directory: paths.Location) -> contextlib.AbstractContextManager:
    """Locks the directory for one evaluator; makes it, and removes it if it stays empty."""
    by_another = "another process evaluates its checkpoints"
    return held(directory, file_name=".eval.lock", by_another=by_another)


def _holds_a_run(directory: paths.Location) -> bool:
    """Whether a training has begun here, or is about to begin."""
    with paths.failures_named(directory):
        begun = (directory / RECORD_NAME).exists() or saved_checkpoints(str(directory))
        return bool(begun) or lock_of(directory).is_held_elsewhere()


def _evaluate_given(config: RunConfig, prefix: str, directory: paths.Location) -> str:
    StoredCheckpoint(prefix)  # before a model is built
    # The step is the number at the end of its name; 0 if it has none.
    number = re.search(r"-(\d{1,18})$", prefix)
    with _evaluator(config) as (evaluate_one, data), _locked(directory):
        evaluation = evaluate_one(prefix)
        step = int(number[1]) if number else 0
        record_evaluation(directory, step, evaluation, checkpoint=prefix, data=data)
    return (
        f"{prefix}: masked-LM accuracy {evaluation.masked_lm_accuracy:.5f}, loss "
        f"{evaluation.loss:.5f}, on {evaluation.num_examples:,} examples; see "
        f"{directory / RESULTS_TEXT}"
    )


@contextlib.contextmanager
def _evaluator(config: RunConfig) -> Iterator[tuple[Callable[[str], Evaluation], str]]:
    """Checks the input and builds the model.

    Yields what evaluates the checkpoint of a prefix, and on which examples, as `data_of`.
    """
    bert_config = BertConfig.from_json_file(config.bert_config_file)
    checks.require_fitting_model(
        bert_config, config.shape, bert_config_file=config.bert_config_file
    )
    flag = "eval_input_file" if config.eval_input_file else "input_file"
    files = pipeline.expand_input(getattr(config, flag), flag=flag)
    vocabulary_of(config, parts.of_files(files))
    data = data_of(config, files)
    require_same_data(paths.location(config.output_dir), data)
    if config.cluster:
        raise ValueError(
            "--do_eval without --do_train runs in one process; unset TF_CONFIG, or start it "
            "without srun"
        )
    chosen = devices.create(config)
    devices.replica_batch_size(config.eval_batch_size, chosen.num_replicas, flag="eval_batch_size")
    limits = config.shape.for_model(bert_config)
    with checked.checked_input(files, limits):
        # A checkpoint is evaluated in the reference's precision, whatever the training's is.
        model, evaluator = model_to_evaluate(bert_config, chosen)
        dataset = pipeline.evaluation_batches(
            files, limits, batch_size=config.eval_batch_size, max_batches=config.max_eval_steps
        )

        def evaluate_one(prefix: str) -> Evaluation:
            _load(model, StoredCheckpoint(prefix))
            with lasting(f"evaluation of {prefix}"):
                return evaluator.evaluate(dataset)

        yield evaluate_one, data


def _load(model: tf.Module, stored: StoredCheckpoint) -> None:
    """Loads all weights; lacking poolers and next-sentence heads stay random, with a note."""
    variables = pretrainer.trained_variables(model)
    if stored.lacking_heads and names.MASKED_LM_HEAD not in stored.lacking_heads:
        _say(
            f"{stored.prefix} has {stored.what_it_lacks}: drawn at random; the "
            "masked-LM accuracy is that of the checkpoint, the loss and what concerns the next "
            "sentence are not"
        )
        variables = reading.held_variables(variables, stored)
    reading.load_weights(variables, stored)


def model_to_evaluate(
    bert_config: BertConfig, chosen: Devices
) -> tuple[tf.Module, EvaluatorContract]:
    """A model whose weights are still to be loaded, and its evaluator in float32."""
    # jax gets the fused model: tf-models' layers would also need unused weights.
    fused = chosen.mesh is not None
    model = pretrainer.build_pretrainer(bert_config, seed=0, compile_passes=fused)
    evaluator = Evaluator(model=model)
    if chosen.mesh:
        from mlperf_bert.programs.jax_trainer import JaxEvaluator  # no other runtime loads jax

        return model, JaxEvaluator(evaluator, chosen.mesh)
    return model, evaluator


def write_result(output_dir: str, *, target_accuracy: float) -> str:
    """Joins the training's log with the evaluations into bert.offline.log, once all are there.

    Returns: one line that says what was written, or why not.
    """
    directory = paths.location(output_dir)
    evaluations, logs = read_evaluations(directory), logs_of_run(directory)
    output, log = directory / RESULT_LOG, directory / LOG_NAME
    # A log has a single number of samples for all its evaluations.
    counts = sorted({entry.num_examples for entry in evaluations.values()})
    obstacle = ""
    if log not in logs:
        obstacle = f": {log}, the log of the training, is missing"
    elif _is_running(directory) and not _has_reached(directory, target_accuracy):
        obstacle = " yet: the training is still running"
    elif not evaluations:
        obstacle = ": no checkpoint has been evaluated"
    elif len(counts) > 1:
        obstacle = (
            f": the checkpoints were evaluated on {counts[0]:,} to {counts[-1]:,} examples; remove "
            f"{directory / RESULTS_LINES}, and evaluate all on the same"
        )
    if obstacle:
        return f"no result log{obstacle}"
    try:
        status, samples = joining.join(
            logs,
            {step: entry.masked_lm_accuracy for step, entry in evaluations.items()},
            num_eval_samples=counts[0],
            target_accuracy=target_accuracy,
            output=output,
        )
    except ValueError as error:
        return f"no result log: {error}"
    departure = rules.departure_of_evaluation(counts[0])
    because = f"; division open ({departure})" if departure else ""
    return f"{output}: {status} after {samples:,} samples{because}"


def _has_reached(directory: paths.Location, target: float) -> bool:
    """Whether a checkpoint has reached the target."""
    return any(_reaches(*each, target) for each in read_evaluations(directory).items())


def _reaches(step: int, evaluation: Evaluation, target: float) -> bool:
    # Step 0 has the initial weights: if they reach the target, nothing was trained to it.
    return step > 0 and evaluation.masked_lm_accuracy >= target


def _pending(
    config: RunConfig, directory: paths.Location, *, only_named: bool
) -> Iterator[tuple[int, str]]:
    """Yields (step, path) of unevaluated checkpoints, oldest first; waits for a running training.

    In a finished run `num_train_steps` may be the step of one earlier checkpoint, to evaluate it
    alone; `init_checkpoint` may name one at any time, unless it is the run's initial one.
    """
    last_step, done = config.num_train_steps, set(read_evaluations(directory))
    saved = saved_checkpoints(str(directory))
    named = _named_step(config.init_checkpoint, saved)
    if named is None and not _is_running(directory) and last_step in saved:
        named = last_step if last_step < max(saved) else None
    if named is not None:
        if named not in done:
            yield named, saved[named]
        return
    waits = False
    while not only_named:
        running = _is_running(directory)  # asked first: the last checkpoint comes before the end
        # Only beside a training can a checkpoint be half written.
        look = complete_checkpoints if running else saved_checkpoints
        saved = look(str(directory))
        step = next((step for step in saved if step not in done), None)
        if step is not None:
            done.add(step)
            yield step, saved[step]
            if step >= last_step:
                return
        elif not running or last_step in done:
            return
        else:
            if not waits:
                _say(
                    f"waiting for the checkpoints of a training into {directory}; to evaluate a "
                    "checkpoint without a training, give --init_checkpoint"
                )
            waits = True
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _named_step(prefix: str | None, saved: Mapping[int, str]) -> int | None:
    """The step of a checkpoint of the run that the user names."""
    if prefix is None:
        return None
    named = os.path.realpath(prefix)
    same = [step for step, path in saved.items() if os.path.realpath(path) == named]
    return next(iter(same), None)


def _is_running(directory: paths.Location) -> bool:
    # Checkpoints without run.json were copied here: no training adds to them.
    if not (directory / RECORD_NAME).exists():
        return not saved_checkpoints(str(directory))  # not begun yet
    return not is_end(read_record(directory).status)
