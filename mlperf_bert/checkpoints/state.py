"""The whole state of a run, saved and restored, so that a killed run continues exactly.

State = weights, optimizer slots and update count, gradient accumulators, step, the random
generators of dropout, and the position in the input (with its shuffle buffer).
"""

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import tensorflow as tf

from mlperf_bert.checkpoints.reading import StoredCheckpoint, damage_named
from mlperf_bert.files import paths
from mlperf_bert.messages import lasting
from mlperf_bert.mlperf.log import TimedRun

CHECKPOINT_NAME = "model.ckpt"
_REMEDY = "remove its files to resume from the one before, or choose another --output_dir"
_damage_named = functools.partial(damage_named, failed="restored", remedy=_REMEDY)


@dataclasses.dataclass
class RunState:
    """Saves the trackable `parts` to `directory` as model.ckpt-STEP, and restores them."""

    directory: str
    _: dataclasses.KW_ONLY
    parts: dict[str, object]
    keep_checkpoint_max: int
    """How many checkpoints stay; 0 = all."""
    disposable: Callable[[Collection[int]], Collection[int]] = lambda steps: steps
    """Given steps -> those whose checkpoints may go; the others stay, however many."""
    fetch: Callable[[], None] = lambda: None
    """Brings the state to the variables of `parts`, if it is elsewhere."""

    def __post_init__(self) -> None:
        self._checkpoint = _checkpoint_of(self.parts)
        self._restored: str | None = None

    def restore(self, path: str) -> None:
        """Restores everything but the input position from a checkpoint of a run."""
        self._restored = path
        with _damage_named(path):
            status = self._checkpoint.restore(path)
            # Not assert_consumed: the position in the input is there too, and restored later.
            status.assert_existing_objects_matched()
            self._require_finite()
        print(f"Resuming from {path}", flush=True)

    def _require_finite(self) -> None:
        for part in tf.train.TrackableView(self._checkpoint).descendants():
            if not isinstance(part, tf.Variable) or not part.dtype.is_floating:
                continue
            if not tf.reduce_all(tf.math.is_finite(part.read_value())):
                raise ValueError(f"{part.name} holds NaN or infinity")

    def restore_input(self, iterator: tf.data.Iterator) -> bool:
        """Moves an iterator over the input to where the run was.

        Returns: whether it could; it cannot if the files have other names than in the checkpoint.
        """
        if not self._restored:
            return True
        with _damage_named(self._restored):
            try:
                tf.train.Checkpoint(iterator=iterator).restore(self._restored).expect_partial()
            except tf.errors.NotFoundError:
                # File names are part of the position: files with other names have no key.
                return False
        return True

    def attach_input(self, iterator) -> None:
        """Adds the iterator over the input to the state.

        A new tf.train.Checkpoint holds it: the old object would restore the position a second time.
        """
        self._checkpoint = _checkpoint_of({**self.parts, "iterator": iterator})

    def copy(self) -> dict[str, tf.Tensor]:
        """The tensors that `save` would write now, by key, in host memory; training changes none.

        On a CPU nothing is copied here: a tensor shares its variable's memory, and whatever changes
        the variable while the tensor is held makes a copy first, as TensorFlow promises of values
        that were read.
        """
        self.fetch()
        # Private: TensorFlow has no public way to ask for a checkpoint's tensors.
        tensors_of_parts, *_ = self._checkpoint._saver._gather_serialized_tensors()
        copied = {}
        with tf.device("CPU:0"):
            for tensors in tensors_of_parts.values():
                for key, value in tensors.items():
                    # A part gives tensors, or specifications with one in them.
                    copied[key] = tf.identity(getattr(value, "tensor", value))
        return copied

    def save(self, step: int, copied: dict[str, tf.Tensor] | None = None) -> str:
        """Writes the state as `copy` returned it, by default now, complete or not at all.

        Returns: the path, model.ckpt-`step`.

        Raises:
          OSError: it cannot be written, as on a full disk; the checkpoints before it are intact.
        """
        path = f"{self.directory.rstrip('/')}/{CHECKPOINT_NAME}-{step}"
        saved = saved_checkpoints(self.directory)
        try:
            with paths.failures_named(path):
                # A killed process leaves this folder. TensorFlow would remove only an empty one.
                if tf.io.gfile.isdir(f"{path}_temp"):
                    tf.io.gfile.rmtree(f"{path}_temp")
                _write(path, copied or self.copy())
                saved[step] = path
                kept = self._paths_to_keep(saved)
                # Before old ones are removed: after a kill too, what is listed is there.
                self._list(path, kept)
        except OSError:
            _remove(path)
            raise
        for old in set(saved.values()) - set(kept):
            _remove(old)
        return path

    def _list(self, newest: str, kept: list[str]) -> None:
        """Writes the file `checkpoint`, with names that stay right when the directory moves."""
        listed = [newest, *kept]
        # TensorFlow takes the directory off a path that is relative or begins with gs://.
        if self.directory.startswith("/"):
            listed = [name.rpartition("/")[2] for name in listed]
        # TF1's function: tf.train.CheckpointManager would choose by its own rules what stays.
        tf.compat.v1.train.update_checkpoint_state(self.directory, listed[0], listed[1:])

    def _paths_to_keep(self, saved: dict[int, str]) -> list[str]:
        steps = sorted(saved)
        old = steps[: -self.keep_checkpoint_max] if self.keep_checkpoint_max else []
        dropped = self.disposable(old) if old else ()
        return [saved[step] for step in steps if step not in dropped]


@dataclasses.dataclass
class Saves(contextlib.AbstractContextManager["Saves"]):
    """The checkpoints of a run, written one at a time, also while the training continues.

    At the end of the context the last one is complete, or its failure is raised.
    """

    state: RunState | None
    """What is saved; None: another process of the run saves it."""
    _: dataclasses.KW_ONLY
    flush: Callable[[], None]
    """Called before a checkpoint, by the thread of the training."""
    publish: Callable[[], None]
    """Called before and after a checkpoint, by the thread that writes it."""
    asynchronous: bool
    """Whether the training continues while a checkpoint is written."""

    def __post_init__(self) -> None:
        # tf.train.CheckpointOptions(enable_async=True) would not do: its thread's error comes out
        # at the next save only, and it does not report when a checkpoint is complete.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="saves")
        self._writing: Future | None = None

    def __exit__(self, kind, *exc_info) -> None:
        # After an error too: a checkpoint that is half written would be of no use.
        self._thread.shutdown(wait=True)
        if kind is None:  # an earlier error is kept
            self.wait()

    def save(self, step: int, run: TimedRun | None = None) -> None:
        """Saves the state as it is now; logged in `run`, once the checkpoint before is complete.

        Raises:
          OSError: this checkpoint, or the one before, cannot be written.
        """
        # One at a time: a second copy of the state would need its memory again.
        self.wait()
        if run:
            run.checkpoint_start(step)
        self.flush()
        if self.asynchronous and self.state:
            # Copied here, by the thread of the training: the next step changes the state.
            self._writing = self._thread.submit(self._write, step, run, self.state.copy())
        else:
            self._write(step, run)

    def wait(self) -> None:
        """Waits until the last checkpoint is complete."""
        if self._writing:
            self._writing.result()

    def require_no_failure(self) -> None:
        """Raises as `wait`, if the writing has failed by now; does not wait."""
        if self._writing and self._writing.done():
            self.wait()

    @lasting("saving a checkpoint")
    def _write(self, step: int, run: TimedRun | None, copied: dict | None = None) -> None:
        """Publishes what a resumed run needs beside a checkpoint, then writes the checkpoint."""
        # A checkpoint whose log or metrics are missing in the bucket could not be resumed from.
        self.publish()
        if self.state:
            self.state.save(step, copied)
        if run:
            run.checkpoint_stop(step)
        self.publish()


def _checkpoint_of(parts: dict[str, object]) -> tf.train.Checkpoint:
    checkpoint = tf.train.Checkpoint(**parts)
    _ = checkpoint.save_counter  # reading it creates it; `restore` expects it
    return checkpoint


def complete_checkpoints(directory: str) -> dict[int, str]:
    """Step -> path of every checkpoint whose saving was not interrupted and is not under way.

    The file `checkpoint` lists a checkpoint once all of it is there. Where that file is lost, or
    lists none of those that are there, every checkpoint that can be opened counts.
    """
    saved = saved_checkpoints(directory)
    if listed := _listed_steps(directory) & saved.keys():
        return {step: path for step, path in saved.items() if step in listed}
    return {step: path for step, path in saved.items() if _is_whole(path)}


def newest_checkpoint(directory: str) -> tuple[int | None, str]:
    """Step and path of the newest complete checkpoint; None and "" where nothing was saved yet."""
    if complete := complete_checkpoints(directory):
        return max(complete.items())
    saved = saved_checkpoints(directory)
    if len(saved) > 1:
        raise ValueError(
            f"{directory}: none of its {len(saved)} checkpoints can be read, such as "
            f"{max(saved.items())[1]}; copy them here again, or remove them to begin at step 0"
        )
    return None, ""


def saved_checkpoints(directory: str) -> dict[int, str]:
    """Step -> path of every checkpoint, oldest first.

    TensorFlow writes the index file last: where it is, the data are.
    """
    pattern = f"{directory.rstrip('/')}/{CHECKPOINT_NAME}-*.index"
    saved = _by_step(path.removesuffix(".index") for path in tf.io.gfile.glob(pattern))
    return dict(sorted(saved.items()))


def _by_step(prefixes: Iterable[str]) -> dict[int, str]:
    """Step -> path, as {600: ".../model.ckpt-600"}; names without a step are left out."""
    return {int(number[1]): path for path in prefixes if (number := re.search(r"-(\d+)$", path))}


def _listed_steps(directory: str) -> set[int]:
    """Steps in the file `checkpoint`; none where it is lost or damaged."""
    try:
        state = tf.train.get_checkpoint_state(directory)
    except (ValueError, tf.errors.OpError):
        return set()
    return set(_by_step(state.all_model_checkpoint_paths if state else ()))


def _is_whole(path: str) -> bool:
    """Whether the index can be read and the data file holds all that it lists."""
    try:
        stored = StoredCheckpoint(path)
        return stored.held_bytes >= stored.listed_bytes
    # Other refusals of a store are raised: the checkpoint that it refuses may be whole.
    except (ValueError, FileNotFoundError):
        return False


def _write(path: str, tensors: dict[str, tf.Tensor]) -> None:
    """Writes a checkpoint as tf.train.Checkpoint does: beside, then renamed, the index last."""
    beside = f"{path}_temp/part"
    tf.io.gfile.makedirs(path.rpartition("/")[0])
    tf.raw_ops.SaveV2(
        prefix=beside,
        tensor_names=list(tensors),
        shape_and_slices=[""] * len(tensors),
        tensors=list(tensors.values()),
    )
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=[beside], destination_prefix=path, delete_old_dirs=True
    )


def _remove(path: str) -> None:
    """Removes a checkpoint, the index first: without it the rest is ignored."""
    for name in [f"{path}.index", f"{path}_temp", *tf.io.gfile.glob(f"{path}.*")]:
        with contextlib.suppress(tf.errors.OpError):
            if tf.io.gfile.isdir(name):
                tf.io.gfile.rmtree(name)
            else:
                tf.io.gfile.remove(name)
