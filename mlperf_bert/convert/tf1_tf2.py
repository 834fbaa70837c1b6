"""Conversion between TF1's checkpoints by name and TF2's by object, both ways.

Also the gradient accumulators that the reference wants in a TF1 checkpoint.
"""

import tensorflow as tf
from official.nlp.modeling.models import BertPretrainerV2

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import saving
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CONVERTED_MODELS = ("pretrainer", "encoder")


def convert(
    prefix: str, converted_prefix: str, *, config: BertConfig, converted_model: str = "pretrainer"
) -> str:
    """Writes a TF1 checkpoint as TF2, or a TF2 checkpoint as TF1; only the weights.

    The layout of `prefix` decides the direction. There and back, no bit changes.

    Args:
      prefix: initial checkpoint, or output of a run: slots, accumulators and step are left out.
      converted_prefix: the path of the result, as it stands: no step number is added.
      converted_model: what the TF2 checkpoint holds for tf-models, see `_items`. TF1 holds all that
        the TF2 checkpoint has. An "encoder" may lack the heads.

    Returns: a line that says what was done.

    Raises:
      ValueError: no such checkpoint, damaged, of another architecture, or the result exists.
    """
    saving.require_absent(converted_prefix)
    stored = StoredCheckpoint(prefix)
    model = build_pretrainer(config, seed=0)
    variables = trained_variables(model)
    weights = reading.weights_of(variables)
    heads = [weight for weight in weights if weight.is_of_a_head]
    missing = [weight for weight in heads if stored.name_of(weight) is None]
    if len(missing) == len(heads) and stored.num_hidden_layers and converted_model != "encoder":
        raise ValueError(
            f"{prefix}: holds an encoder without the heads of pre-training; "
            "--converted_model=encoder converts it"
        )
    wanted = variables
    if converted_model == "encoder":
        wanted = [variable for weight, variable in weights.items() if weight not in missing]
    loaded = reading.load_weights(wanted, stored)
    with saving.written_whole(converted_prefix) as beside:
        if stored.is_object_based:
            tensors = saving.weights_by_tf1_name(variables)
            saving.write_name_based(beside, {name: tensors[name] for name in loaded})
            direction = "from TF2 to TF1" + (" (encoder)" if missing else "")
        else:
            # Our pooler is in the next-sentence head; users of the encoder alone look for it there.
            pooler = model.classification_heads[0].dense
            model.encoder_network.pooler_layer.set_weights(pooler.get_weights())
            tf.train.Checkpoint(**_items(model, converted_model)).save(beside)
            direction = f"from TF1 to TF2 ({converted_model})"
    return f"{len(loaded)} weights converted {direction}: {converted_prefix}"


def _items(model: BertPretrainerV2, converted_model: str) -> dict[str, tf.Module]:
    """The objects of the checkpoint, named as tf-models looks for them.

    pretrainer: `model` with both heads, and the parts (`encoder`, `masked_lm`,
    `next_sentence.pooler_dense`) from which tf-models starts fine-tuning. encoder: the encoder
    alone as `model`, as old tools expect, and as `encoder`.
    """
    if converted_model == "encoder":
        return {"model": model.encoder_network, "encoder": model.encoder_network}
    return {"model": model, **model.checkpoint_items}


ACCUMULATOR = "GradientAccumulator"


def add_accumulators(old: str, new: str) -> int:
    """Copies a TF1 checkpoint and adds zeros, NAME/GradientAccumulator, for every tensor NAME.

    Every tensor: slots and step too, as the reference does. Our own training ignores accumulators
    in its initial checkpoint. Holds twice the checkpoint in memory.

    Returns: how many accumulators were added.

    Raises:
      ValueError: no such checkpoint, damaged, not TF1, with accumulators, or `new` exists.
    """
    saving.require_absent(new)
    stored = StoredCheckpoint(old)
    if stored.is_object_based:
        raise ValueError(
            f"{old} is a TF2 checkpoint, and accumulators are for TF1 ones; "
            "convert it with tf2_encoder_checkpoint_converter.py first"
        )
    if present := [name for name in sorted(stored.shapes) if name.endswith(f"/{ACCUMULATOR}")]:
        raise ValueError(f"{old} already has accumulators, such as {present[0]}; use it as it is")
    tensors = {name: tf.constant(stored.tensor(name)) for name in stored.shapes}
    zeros = {f"{name}/{ACCUMULATOR}": tf.zeros_like(tensor) for name, tensor in tensors.items()}
    with saving.written_whole(new) as beside:
        saving.write_name_based(beside, tensors | zeros)
    return len(zeros)
