"""Conversion to TF2's checkpoints by object.

Also the gradient accumulators that the reference wants in a TF1 checkpoint.
"""

import tensorflow as tf
from official.nlp.modeling.models import BertPretrainerV2

from mlperf_bert.checkpoints import reading
from mlperf_bert.checkpoints.reading import StoredCheckpoint
from mlperf_bert.convert import saving
from mlperf_bert.messages import lasting
from mlperf_bert.model.config import BertConfig
from mlperf_bert.model.pretrainer import build_pretrainer, trained_variables

CONVERTED_MODELS = ("pretrainer", "encoder")


@lasting("converting the checkpoint")
def convert(
    prefix: str, converted_prefix: str, *, config: BertConfig, converted_model: str = "pretrainer"
) -> str:
    """Writes the weights of a checkpoint, and nothing else of it, as a TF2 checkpoint.

    Args:
      prefix: a TF1 checkpoint, or the output of a run; slots, accumulators and step are left out.
      converted_prefix: the path of the result, as it stands: no step number is added.
      converted_model: what the result holds for tf-models, see `_items`. An "encoder" may lack the
        heads.

    Returns: a line that says what was done.
    """
    saving.require_absent(converted_prefix)
    stored = StoredCheckpoint(prefix)
    model = build_pretrainer(config, seed=0)
    variables = trained_variables(model)
    weights = reading.weights_of(variables)
    if stored.lacking_heads and stored.num_hidden_layers and converted_model != "encoder":
        raise ValueError(
            f"{prefix}: has {stored.what_it_lacks}; --converted_model=encoder "
            "converts its encoder, and a run's --init_checkpoint takes it as it is"
        )
    wanted = variables
    if converted_model == "encoder":
        wanted = [
            variable
            for weight, variable in weights.items()
            if not weight.tf1_name.startswith("cls/")
        ]
    loaded = reading.load_weights(wanted, stored)
    # Our pooler is in the next-sentence head; users of the encoder alone look for it there.
    pooler = model.classification_heads[0].dense
    model.encoder_network.pooler_layer.set_weights(pooler.get_weights())
    with saving.written_whole(converted_prefix) as beside:
        tf.train.Checkpoint(**_items(model, converted_model)).save(beside)
    return f"{len(loaded)} weights converted to TF2 ({converted_model}): {converted_prefix}"


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


@lasting("writing accumulators")
def add_accumulators(old: str, new: str) -> int:
    """Copies a TF1 checkpoint and adds zeros, NAME/GradientAccumulator, for every tensor NAME.

    Slots and the step get accumulators too, as in the reference. Our own training ignores those of
    its initial checkpoint. Holds twice the checkpoint in memory.

    Returns: how many accumulators were added.
    """
    saving.require_absent(new)
    stored = StoredCheckpoint(old)
    if stored.is_object_based:
        raise ValueError(
            f"{old} is a TF2 checkpoint, but accumulators are for TF1 ones; give a TF1 checkpoint"
        )
    if present := [name for name in sorted(stored.shapes) if name.endswith(f"/{ACCUMULATOR}")]:
        raise ValueError(f"{old} already has accumulators, such as {present[0]}; use it as it is")
    tensors = {name: tf.constant(stored.tensor(name)) for name in stored.shapes}
    zeros = {f"{name}/{ACCUMULATOR}": tf.zeros_like(tensor) for name, tensor in tensors.items()}
    with saving.written_whole(new) as beside:
        saving.write_name_based(beside, tensors | zeros)
    return len(zeros)
