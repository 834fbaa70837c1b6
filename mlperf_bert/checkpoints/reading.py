"""Reading checkpoints of both layouts: TF1's, by name, and TF2's, by object."""

import contextlib
import glob
import re

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from mlperf_bert.checkpoints import names
from mlperf_bert.checkpoints.names import Weight
from mlperf_bert.files import paths, whole

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"  # where a TF2 checkpoint keeps its graph of objects
_LAYER = re.compile(r"/layer_(\d+)/")


class StoredCheckpoint:
    """A checkpoint of either layout, whose weights are found by the table in `names`.

    TF2 stores a graph of objects with the tensors: it shows the layout, and holds every variable's
    name, so that one table serves for both.
    """

    def __init__(self, prefix: str):
        """Opens the checkpoint `prefix`.index, `prefix`.data-*.

        Raises:
          ValueError: there is none, or it is damaged.
          OSError: a bucket refuses it.
        """
        self.prefix = prefix
        with paths.failures_named(prefix):
            is_there = tf.io.gfile.exists(f"{prefix}.index")
        if not is_there:
            whole.require_unpacked(prefix)
            raise ValueError(
                f"{prefix}: no such checkpoint (no {prefix}.index); give the path up to and "
                "including the step, such as .../model.ckpt-28252"
            )
        with self._damage_named():
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
    def num_hidden_layers(self) -> int:
        """Layers of the encoder in this checkpoint."""
        numbers = [int(match[1]) for name in self._keys for match in [_LAYER.search(name)] if match]
        return max(numbers, default=-1) + 1

    def name_of(self, weight: Weight) -> str | None:
        """What the weight is called in this checkpoint; None if it is missing."""
        candidates = weight.tf2_names if self.is_object_based else [weight.tf1_name]
        return next((name for name in candidates if name in self._keys), None)

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
        if (found := tuple(self.shapes[key])) != expected:
            raise ValueError(f"{name} has shape {found}, expected {expected}")
        if (dtype := self._dtypes[key]) != tf.float32:
            raise ValueError(f"{name} is {dtype.name}, expected float32")
        return key

    def read(self, weight: Weight, our_shape: tuple[int, ...]) -> np.ndarray:
        """The weight in the shape of our variable.

        Raises:
          ValueError: as `locate`, the data file is damaged, or a value is not finite.
        """
        value = self.tensor(self.locate(weight, our_shape))
        if not np.isfinite(value).all():
            raise ValueError(
                f"{self.prefix}: {self.name_of(weight)} holds NaN or infinity; its training has "
                "diverged or the file is damaged: give another checkpoint"
            )
        return value if self.is_object_based else weight.from_tf1(value, our_shape)

    def tensor(self, key: str) -> np.ndarray:
        """Any tensor, by the key of `shapes`; raises ValueError if the data file is damaged."""
        with self._damage_named():
            return self._reader.get_tensor(key)

    def _keys_by_name(self) -> dict[str, str]:
        """Weight's name -> key of its tensor, without optimizer slots."""
        if not self.is_object_based:
            return {
                name: name for name in self.shapes if name.rpartition("/")[0] not in self.shapes
            }
        slots = {slot.slot_variable_node_id for n in self._graph.nodes for slot in n.slot_variables}
        return {
            names.our_name(attribute.full_name): attribute.checkpoint_key
            for number, node in enumerate(self._graph.nodes)
            if number not in slots
            for attribute in node.attributes
            if attribute.full_name
        }

    @contextlib.contextmanager
    def _damage_named(self):
        try:
            yield
        except (tf.errors.OpError, RuntimeError, ValueError, IndexError) as error:
            reason = paths.reason(error)
            if paths.is_answer_of_a_store(error):
                raise paths.kind_of(error)(f"{self.prefix}: cannot be read: {reason}") from error
            for file in whole.matching_files(f"{glob.escape(self.prefix)}.*"):
                whole.require_unpacked(file)
            raise ValueError(
                f"{self.prefix}: cannot be read ({reason}); copy it here again"
            ) from error
