"""Checkpoints written while the training goes on: their content, their order and their failures."""

import threading

import pytest

from mlperf_bert.checkpoints.state import Saves
from mlperf_bert.programs.config import NO_COMPILATION
from tests.helpers import waiting
from tests.training import saved_states, small_trainer


@pytest.mark.gate
@pytest.mark.parametrize(
    "compilation",
    [
        pytest.param(NO_COMPILATION, id="nothing", marks=pytest.mark.all),
        pytest.param(small_trainer.PASSES, id="passes"),  # the default
        pytest.param(small_trainer.STEP, id="step", marks=pytest.mark.all),
    ],
)
def test_training_on_does_not_change_the_copy(task, tmp_path, compilation):
    one_layer = {"num_hidden_layers": 1}
    trainer = small_trainer.make_trainer(compilation=compilation, dropout=0.1, config=one_layer)
    batches = iter(small_trainer.batches_of(task))
    saved_states.assert_copies_are_the_checkpoints(trainer, batches, tmp_path)


class Disk:
    """A state whose checkpoints are complete when told, and which may be full."""

    def __init__(self):
        self.may_finish = threading.Event()
        self.complete: list[int] = []
        self.flushed: list[list[int]] = []
        self.is_full = False

    def flush(self) -> None:
        self.flushed.append(list(self.complete))

    def copy(self) -> dict:
        return {"content": len(self.complete)}

    def save(self, step: int, copied: dict | None) -> None:
        if copied is not None:
            assert self.may_finish.wait(waiting.HANGS_AFTER_SECONDS)
        if self.is_full:
            raise OSError(f"model.ckpt-{step}: cannot be saved (No space left on device)")
        self.complete.append(step)


class Log:
    """Notes checkpoint_start and checkpoint_stop of a run."""

    def __init__(self):
        self.events: list[tuple[str, int]] = []

    def checkpoint_start(self, step: int) -> None:
        self.events.append(("start", step))

    def checkpoint_stop(self, step: int) -> None:
        self.events.append(("stop", step))


def saves_to(disk: Disk, *, asynchronous: bool = True, published=None) -> Saves:
    def publish() -> None:
        if published is not None:
            published.append(list(disk.complete))

    return Saves(disk, flush=disk.flush, publish=publish, asynchronous=asynchronous)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_process_whose_state_another_saves_flushes_and_publishes_alone(asynchronous):
    log = Log()
    told = log.events
    with Saves(
        None,
        flush=lambda: told.append("flush"),
        publish=lambda: told.append("publish"),
        asynchronous=asynchronous,
    ) as saves:
        saves.save(3, log)
        saves.wait()
    assert told == [("start", 3), "flush", "publish", ("stop", 3), "publish"]


def test_a_save_waits_for_the_one_before_and_the_end_for_all(tmp_path):
    disk, log, published = Disk(), Log(), []
    with saves_to(disk, published=published) as saves:
        saves.save(1, log)
        saves.require_no_failure()
        assert log.events == [("start", 1)] and disk.complete == []
        threading.Timer(0.2, disk.may_finish.set).start()
        saves.save(2, log)
        assert disk.complete[:1] == [1] and log.events[1:3] == [("stop", 1), ("start", 2)]
    assert log.events[3:] == [("stop", 2)] and disk.complete == [1, 2]
    assert published == [[], [1], [1], [1, 2]]  # before and after each
    assert disk.flushed == [[], [1]]  # before each, by the thread of the training


def test_without_a_thread_a_checkpoint_is_complete_at_once():
    disk, log = Disk(), Log()
    with saves_to(disk, asynchronous=False) as saves:
        saves.save(1, log)
        assert disk.complete == [1] and log.events == [("start", 1), ("stop", 1)]


def test_a_failure_comes_out_at_the_next_event_the_next_save_and_the_end():
    line = r"^model.ckpt-1: cannot be saved \(No space left on device\)$"
    for ending in (Saves.require_no_failure, Saves.wait, lambda saves: saves.save(2)):
        disk = Disk()
        disk.is_full = True
        with pytest.raises(OSError, match=line), saves_to(disk) as saves:
            saves.save(1)
            disk.may_finish.set()
            waiting.until(saves._writing.done)
            ending(saves)
    disk = Disk()
    disk.is_full = True
    with pytest.raises(OSError, match=line), saves_to(disk) as saves:
        saves.save(1)
        disk.may_finish.set()
    assert disk.complete == []


def test_another_error_is_not_hidden_by_the_failure_and_waits_too():
    disk = Disk()
    with pytest.raises(FloatingPointError), saves_to(disk) as saves:
        saves.save(1)
        threading.Timer(0.1, disk.may_finish.set).start()
        raise FloatingPointError
    assert disk.complete == [1]
    disk.is_full = True
    with pytest.raises(FloatingPointError), saves_to(disk) as saves:
        saves.save(2)
        raise FloatingPointError
