"""Reads checkpoints of both layouts, TF1's by name and TF2's by object, into a model."""

import contextlib
import functools
import glob
import math
import re
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.names import Weight
from mlperf_bert.files import errors, paths, whole
from mlperf_bert.messages import lasting

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # where a TF2 checkpoint keeps its graph of objects
_LAYER = re.compile(r"/layer_(\d+)/")
_MOST_PROBLEMS = 8
# What TensorFlow raises for a file that is cut short or that is not of a checkpoint.
_DAMAGE = (tf.errors.OpError, AssertionError, RuntimeError, ValueError, IndexError)


class StoredCheckpoint:
    """A checkpoint of either layout, whose weights are found by the table in `names`.

    TF2 stores a graph of objects with the tensors: it shows the layout, and holds every variable's
    name, so that one table serves for both.
    """

    def __init__(self, prefix: str):
        """Opens the checkpoint `prefix`.index, `prefix`.data-*."""
        self.prefix = prefix
        if not paths.is_file(f"{prefix}.index"):
            whole.require_unpacked(prefix)
            inside = f"{prefix.rstrip('/')}/variables/variables"  # in a SavedModel, as on TF Hub
            if paths.is_file(f"{inside}.index"):
                raise ValueError(f"{prefix} is a SavedModel; give its checkpoint, {inside}")
            if paths.is_file(prefix):
                raise ValueError(
                    f"{prefix} is one file, but a checkpoint of TensorFlow is PREFIX.index and "
                    "PREFIX.data-*; load it where it was saved, write it again by "
                    "tf.train.Checkpoint(model=model).write(PREFIX), and give PREFIX"
                )
            raise ValueError(
                f"{prefix}: no such checkpoint (no {prefix}.index); give the path up to and "
                "including the step, such as .../model.ckpt-28252"
            )
        with damage_named(prefix):
            self._reader = tf.train.load_checkpoint(prefix)
            self.shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
            self._graph = TrackableObjectGraph()  # empty: TF1
            if self.is_object_based:
                self._graph.ParseFromString(self._reader.get_tensor(_OBJECT_GRAPH))
        self._keys = self._keys_by_name()

    @property
    def is_object_based(self) -> bool:
        """True: TF2, by object; False: TF1, by name."""
        return _OBJECT_GRAPH in self.shapes

    @property
    def root_objects(self) -> set[str]:
        """TF2: the names under which tf.train.Checkpoint was given its objects."""
        return {child.local_name for root in self._graph.nodes[:1] for child in root.children}

    @property
    def listed_bytes(self) -> int:
        """Bytes of all tensors that the index lists; strings, such as the graph, count none."""
        return sum(math.prod(shape) * self._dtypes[key].size for key, shape in self.shapes.items())

    @property
    def held_bytes(self) -> int:
        """Bytes of the data files; fewer than `listed_bytes` if one is cut or missing."""
        data_files = whole.matching_files(f"{glob.escape(self.prefix)}.data-*")
        return sum(map(paths.size_bytes, data_files))

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the encoder in this checkpoint."""
        return num_layers(self._keys)

    def name_of(self, weight: Weight) -> str | None:
        """The weight's name in this checkpoint; None if it is missing."""
        candidates = weight.tf2_names if self.is_object_based else [weight.tf1_name]
        return next((name for name in candidates if name in self._keys), None)

    @functools.cached_property
    def lacking_heads(self) -> dict[str, str]:
        """The heads of `names.HEADS` that have no weight in this checkpoint."""
        held = [weight.tf1_name for weight in names.weights(0) if self.name_of(weight)]
        return {
            head: beginning
            for head, beginning in names.HEADS.items()
            if not any(name.startswith(beginning) for name in held)
        }

    @property
    def what_it_lacks(self) -> str:
        """The lacking heads in words, such as "no pooler, no next-sentence head"."""
        return ", ".join(f"no {head}" for head in self.lacking_heads)

    def is_of_a_lacking_head(self, weight: Weight) -> bool:
        """Whether the weight belongs to a head that has no weight in this checkpoint."""
        return weight.tf1_name.startswith(tuple(self.lacking_heads.values()))

    def locate(self, weight: Weight, our_shape: tuple[int, ...]) -> str:
        """The key, in `shapes`, of the weight that belongs to our variable of this shape.

        Raises:
          ValueError: it is missing, or of another shape or type.
        """
        if (name := self.name_of(weight)) is None:
            missing = weight.our_name if self.is_object_based else weight.tf1_name
            raise ValueError(f"{missing} is missing")
        expected = our_shape if self.is_object_based else weight.tf1_shape(our_shape)
        key = self._keys[name]
        if (stored_shape := tuple(self.shapes[key])) != expected:
            raise ValueError(f"{name} has shape {stored_shape}, expected {expected}")
        if (dtype := self._dtypes[key]) != tf.float32:
            raise ValueError(f"{name} is {dtype.name}, expected float32")
        return key

    def read(self, weight: Weight, our_shape: tuple[int, ...]) -> np.ndarray:
        """The weight in the shape of our variable."""
        value = self.tensor(self.locate(weight, our_shape))
        if not np.isfinite(value).all():
            raise ValueError(
                f"{self.prefix}: {self.name_of(weight)} holds NaN or infinity; its training has "
                "diverged or the file is damaged: give another checkpoint"
            )
        return value if self.is_object_based else weight.from_tf1(value, our_shape)

    def tensor(self, key: str) -> np.ndarray:
        """Any tensor, by the key of `shapes`; raises ValueError if the data file is damaged."""
        with damage_named(self.prefix):
            return self._reader.get_tensor(key)

    def _keys_by_name(self) -> dict[str, str]:
        """Weight's name -> key of its tensor, without optimizer slots."""
        if not self.is_object_based:
            # A slot or accumulator is called NAME/SLOT after its weight.
            return {key: key for key in self.shapes if key.rpartition("/")[0] not in self.shapes}
        slots = {slot.slot_variable_node_id for n in self._graph.nodes for slot in n.slot_variables}
        return {
            names.our_name(attribute.full_name): attribute.checkpoint_key
            for number, node in enumerate(self._graph.nodes)
            if number not in slots
            for attribute in node.attributes
            if attribute.full_name
        }


@contextlib.contextmanager
def damage_named(
    prefix: str, *, failed: str = "read", remedy: str = "copy it here again"
) -> Iterator[None]:
    """Names the checkpoint that cannot be read inside, and says what to do.

    Raises:
      ValueError: it is damaged, or one of its files is an archive or a Git LFS pointer.
      OSError: a store refuses it; StoreUnavailable if a later try may succeed.
    """
    try:
        yield
    except _DAMAGE as error:
        # Asked first, because a checkpoint that a store refuses may be whole. TensorFlow's
        # readers of checkpoints raise a ValueError for whatever a store answers.
        paths.is_file(f"{prefix}.index")
        for file in whole.matching_files(f"{glob.escape(prefix)}.*"):
            whole.require_unpacked(file)
        raise ValueError(
            f"{prefix}: cannot be {failed} ({errors.reason(error)}); {remedy}"
        ) from error


def num_layers(weight_names: Iterable[str]) -> int:
    """The number of layers of an encoder, by the names of its weights, TF1's or ours."""
    numbers = [int(match[1]) for match in map(_LAYER.search, weight_names) if match]
    return max(numbers, default=-1) + 1


def weights_of(variables: Iterable[tf.Variable]) -> dict[Weight, tf.Variable]:
    """The weights that variables of ours hold; other variables are left out."""
    by_name = {names.our_name(variable.name): variable for variable in variables}
    table = names.weights(num_layers(by_name))
    return {weight: by_name[weight.our_name] for weight in table if weight.our_name in by_name}


def load_initial_weights(model_variables: list[tf.Variable], stored: StoredCheckpoint) -> list[str]:
    """Sets the variables from an initial checkpoint, as `load_weights`; says so in one line.

    Heads that it lacks stay as they were drawn. Optimizer slots, accumulators and the step stay as
    they are: training begins at step 0.
    """
    loaded = load_weights(held_variables(model_variables, stored), stored)
    layout = "TF2, by object" if stored.is_object_based else "TF1, by name"
    lacking = ", ".join(stored.lacking_heads)
    drawn = lacking and f"; drawn, for it lacks them: {lacking}"
    print(f"Initial weights: {len(loaded)} from {stored.prefix} ({layout}){drawn}", flush=True)
    return loaded


def held_variables(
    model_variables: Iterable[tf.Variable], stored: StoredCheckpoint
) -> list[tf.Variable]:
    """The variables of weights, without those of heads that the checkpoint lacks."""
    table = weights_of(model_variables)
    return [each for weight, each in table.items() if not stored.is_of_a_lacking_head(weight)]


@lasting("reading the weights of a checkpoint")
def load_weights(model_variables: list[tf.Variable], stored: StoredCheckpoint) -> list[str]:
    """Sets every given variable that the table of names has; returns the TF1 names.

    Raises:
      ValueError: a weight is missing or has another shape; the message lists every one, and none is
        set. Or the data file is damaged, which shows only as it is read.
    """
    variables = weights_of(model_variables)
    shapes = {weight: tuple(variable.shape) for weight, variable in variables.items()}
    require_fitting(stored, shapes)
    # One after the other, so that memory never holds all of them twice.
    for weight, variable in variables.items():
        variable.assign(stored.read(weight, shapes[weight]))
    return [weight.tf1_name for weight in variables]


def require_fitting(
    stored: StoredCheckpoint, shapes: Mapping[Weight, tuple[int, ...]], *, or_else: str = ""
) -> None:
    """Checks names, shapes and types against `shapes`, those of our variables; reads no weight.

    In messages `or_else`, what else a user may do, follows the remedy.
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
    expected = num_layers(weight.our_name for weight in shapes)
    if stored.num_hidden_layers > expected:
        problems.append(f"it has {stored.num_hidden_layers} layers, expected {expected}")
    if num_misfits and num_misfits == sum(map(stored.is_of_a_lacking_head, shapes)):
        raise ValueError(
            f"{stored.prefix}: has {stored.what_it_lacks}; a training that is "
            "given it as --init_checkpoint draws what it lacks, and its checkpoints have all"
        )
    if problems:
        raise ValueError(
            f"{stored.prefix}: not a checkpoint of this architecture, {num_misfits} of "
            f"{len(shapes)} weights do not fit: {'; '.join(problems)}; "
            f"give the --bert_config_file that belongs to it{or_else}"
        )


def refuse_output_of_a_run(stored: StoredCheckpoint) -> None:
    """Raises ValueError if a training run wrote this checkpoint.

    Ours, and those of tf-models' trainer: the graph of objects holds `optimizer`. The reference's:
    its Estimator writes graph.pbtxt beside them. Slots and a step say nothing: the published
    initial checkpoint has both.
    """
    beside = stored.prefix.rpartition("/")[0] or "."
    if "optimizer" in stored.root_objects or paths.is_file(f"{beside}/graph.pbtxt"):
        raise ValueError(
            f"--init_checkpoint={stored.prefix} is an output of a training run, not an initial "
            "checkpoint; to continue one of our runs, repeat its command with the same "
            "--output_dir; to start again from these weights, convert the checkpoint with "
            "tf2_encoder_checkpoint_converter.py into another directory first"
        )
