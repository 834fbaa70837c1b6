"""Initial weights, from a checkpoint of either layout into a model: all of them or none."""

from collections.abc import Mapping

import tensorflow as tf

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.files import paths

_MOST_PROBLEMS = 8


def load_initial_weights(
    model_variables: list[tf.Variable], stored: StoredCheckpoint, *, num_hidden_layers: int
) -> list[str]:
    """Sets every given variable from an initial checkpoint, TF1 or TF2; says so in one line.

    Optimizer slots, accumulators and the step stay as they are: training starts again from these
    weights. Variables that are not in the table of names are left alone.

    Returns: the TF1 names of the weights.

    Raises:
      ValueError: as `load_weights`.
    """
    loaded = load_weights(model_variables, stored, num_hidden_layers=num_hidden_layers)
    layout = "TF2, by object" if stored.is_object_based else "TF1, by name"
    print(f"Initial weights: {len(loaded)} from {stored.prefix} ({layout})", flush=True)
    return loaded


def load_weights(
    model_variables: list[tf.Variable], stored: StoredCheckpoint, *, num_hidden_layers: int
) -> list[str]:
    """Sets every given variable from a checkpoint; returns the TF1 names.

    One weight after the other, so that memory never holds all of them twice.

    Raises:
      ValueError: a weight is missing or has another shape; the message lists every one, and none is
        set. Or the data file is damaged, which shows only as it is read.
    """
    by_name = {names.our_name(variable.name): variable for variable in model_variables}
    table = [w for w in names.weights(num_hidden_layers) if w.our_name in by_name]
    shapes = {weight: tuple(by_name[weight.our_name].shape) for weight in table}
    require_fitting(stored, shapes, num_hidden_layers=num_hidden_layers)
    for weight, shape in shapes.items():
        by_name[weight.our_name].assign(stored.read(weight, shape))
    return [weight.tf1_name for weight in table]


def require_fitting(
    stored: StoredCheckpoint,
    shapes: Mapping[names.Weight, tuple[int, ...]],
    *,
    num_hidden_layers: int,
) -> None:
    """Checks names, shapes and types against those of a model; reads no weight.

    Args:
      stored: the checkpoint.
      shapes: those of our variables.
      num_hidden_layers: of the model.

    Raises:
      ValueError: some do not fit, or there are more layers.
    """
    problems = []
    for weight, shape in shapes.items():
        try:
            stored.locate(weight, shape)
        except ValueError as error:
            problems.append(str(error))
    num_misfits = len(problems)
    if (more := num_misfits - _MOST_PROBLEMS) > 0:
        problems = [*problems[:_MOST_PROBLEMS], f"and {more} more"]
    if stored.num_hidden_layers > num_hidden_layers:
        problems.append(f"it has {stored.num_hidden_layers} layers, expected {num_hidden_layers}")
    if problems:
        raise ValueError(
            f"{stored.prefix}: not a checkpoint of this architecture, {num_misfits} of "
            f"{len(shapes)} weights do not fit: {'; '.join(problems)}; "
            "give the --bert_config_file that belongs to it"
        )


def refuse_output_of_a_run(stored: StoredCheckpoint) -> None:
    """Raises ValueError if a training run wrote this checkpoint.

    Ours, and those of tf-models' trainer: the graph of objects holds `optimizer`. The reference's:
    its Estimator writes graph.pbtxt beside them. Slots and a step say nothing: the published
    initial checkpoint has both.
    """
    beside = stored.prefix.rpartition("/")[0] or "."
    with paths.failures_named(stored.prefix):
        has_graph = tf.io.gfile.exists(f"{beside}/graph.pbtxt")
    if has_graph or "optimizer" in stored.root_objects:
        raise ValueError(
            f"--init_checkpoint={stored.prefix} is an output of a training run, not an initial "
            "checkpoint; to continue one of our runs, repeat its command with the same "
            "--output_dir; to start again from these weights, convert the checkpoint with "
            "tf2_encoder_checkpoint_converter.py into another directory first"
        )
