"""Initial weights: reading them into a model, and writing name-based (TF1) checkpoints."""

import numpy as np
import tensorflow as tf

from mlperf_bert.checkpoints import names


def read_weights(prefix: str) -> dict[str, np.ndarray]:
    """The weights of a TF1 name-based checkpoint, without optimizer slots, by TF1 name.

    Raises:
      ValueError: no checkpoint has this prefix, or its data file is damaged or of another kind.
    """
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise ValueError(
            f"{prefix}: no such checkpoint (no {prefix}.index); --init_checkpoint takes the path "
            "up to and including the step, such as .../model.ckpt-28252"
        )
    try:
        reader = tf.train.load_checkpoint(prefix)
        present = reader.get_variable_to_shape_map()
        wanted = [name for name in present if name.startswith(("bert/", "cls/"))]
        return {name: reader.get_tensor(name) for name in wanted if not _is_slot(name, present)}
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{prefix}: cannot be read ({reason}); copy it here again") from error


def _is_slot(name: str, present: dict) -> bool:
    """Optimizer slots are named after their weight: ".../kernel/LAMB", ".../kernel/adam_m"."""
    return name.rpartition("/")[0] in present


def load_initial_weights(
    model_variables: list[tf.Variable], prefix: str, *, num_hidden_layers: int
) -> list[str]:
    """Sets every given variable from a TF1 checkpoint, all or none.

    Optimizer slots and the step stay as they are: training starts anew from these weights.

    Returns: the TF1 names that were loaded.

    Raises:
      ValueError: a weight is missing or has another shape; the message lists every one.
    """
    values = read_weights(prefix)
    by_name = {names.our_name(variable.name): variable for variable in model_variables}
    table = [w for w in names.weights(num_hidden_layers) if w.our_name in by_name]
    problems, assignments = [], []
    for weight in table:
        variable = by_name[weight.our_name]
        if weight.tf1_name not in values:
            problems.append(f"{weight.tf1_name} is missing")
            continue
        try:
            value = weight.from_tf1(values[weight.tf1_name], tuple(variable.shape))
        except ValueError as error:
            problems.append(str(error))
        else:
            assignments.append((variable, value))
    if problems:
        raise ValueError(
            f"{prefix}: not a checkpoint of this architecture, {len(problems)} of {len(table)} "
            f"weights do not fit: {'; '.join(problems)}; "
            "give the --bert_config_file that belongs to it"
        )
    for variable, value in assignments:
        variable.assign(value)
    return [weight.tf1_name for weight in table]


def write_name_based(prefix: str, tensors: dict[str, np.ndarray]) -> None:
    """Writes a name-based checkpoint as TF1's Saver does: `prefix`.index and one data file."""
    ordered = sorted(tensors)
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=ordered,
        shape_and_slices=[""] * len(ordered),
        tensors=[tf.constant(tensors[name]) for name in ordered],
    )


def weights_by_tf1_name(
    model_variables: list[tf.Variable], *, num_hidden_layers: int
) -> dict[str, np.ndarray]:
    """The model's weights as a TF1 checkpoint holds them."""
    by_name = {names.our_name(variable.name): variable for variable in model_variables}
    return {
        weight.tf1_name: weight.to_tf1(by_name[weight.our_name].numpy())
        for weight in names.weights(num_hidden_layers)
    }
