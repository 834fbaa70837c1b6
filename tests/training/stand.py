"""All that is around the events of a run: a trainer that only moves a clock, a log, outputs."""

import types
from contextlib import nullcontext

import numpy as np

from mlperf_bert.mlperf.ledger import Ledger
from mlperf_bert.mlperf.log import MlperfLog
from mlperf_bert.model.metrics import Evaluation
from mlperf_bert.programs.config import STEP_FIGURES
from mlperf_bert.training import run
from mlperf_bert.training.events import Profile
from tests.mlperf.example_log import Clock, initialise
from tests.training.configurations import run_config

EVALUATION = 30.0
"""Seconds of one."""


class Stand:
    """Everything around the events; a step takes a second, if `step_seconds` says no other.

    `events` has what happens, `written` what goes to metrics.jsonl, `said` the lines, `calls` the
    steps of each device call; `loss_of` gives the loss of a step. `saved_at` is the second of the
    last checkpoint.
    """

    batch_size = 8

    def __init__(self, *, step=0, used=0.0, samples_at_target=None, evaluates=True, **flags):
        self.clock, self.events, self.said, self.signal_name = Clock(), [], [], None
        self.written, self.loss_of = [], lambda step: 0.0
        self.calls, self.step_seconds, self.saved_at = [], lambda step: 1.0, None
        self.step, self.spent_seconds, self.samples_at_target = step, used, samples_at_target
        self.trained_step, self.signal_at, self.evaluated = step, None, []
        given = {
            "train_batch_size": 8,
            "num_train_steps": 100,
            "eval_interval_samples": 8 * 20,
            "save_checkpoints_steps": 10**6,
            "log_every_steps": 7,
            "iterations_per_loop": 10,
            "target_accuracy": 0.7,
            "eval_input_file": "eval" if evaluates else None,
        }
        self.config = run_config(**given | flags)

    def train_steps(self, num_steps):
        before = self.trained_step
        seconds = sum(map(self.step_seconds, range(before, before + num_steps)))
        self.clock.pass_by(seconds)
        self.trained_step += num_steps
        self.calls.append(num_steps)
        if self.signal_at is not None and self.trained_step >= self.signal_at:
            self.signal_name = "SIGTERM"
        figures = np.zeros((num_steps, len(STEP_FIGURES)))
        last = self.trained_step
        figures[:, 0] = [self.loss_of(step) for step in range(last - num_steps + 1, last + 1)]
        return figures, seconds

    def evaluate(self):
        self.events.append("evaluate")
        self.evaluated.append(self.trained_step)
        self.clock.pass_by(EVALUATION)
        return Evaluation(
            masked_lm_accuracy=0.5,
            masked_lm_loss=1.0,
            next_sentence_accuracy=0.5,
            next_sentence_loss=1.0,
            loss=2.0,
            num_examples=45,
        )

    def save(self, step, run):
        self.events.append(f"save {step}")
        self.saved_at = self.clock.now - Clock.now

    def wait(self):
        self.events.append("saved")

    def require_no_failure(self):
        pass

    def write(self, kind, **figures):
        self.written.append({"kind": kind, **figures})

    def advance(self, samples, text):
        pass

    def line(self, text):
        self.said.append(text)

    def publish(self):
        pass

    def flush(self):
        pass

    def say(self, text):
        pass

    def at_step(self, step):
        return step / 10

    def gather(self, values):
        # Another process, whose clock and steps say twice as much, decides nothing.
        return np.array([values, np.multiply(values, 2)])

    def run(self, path):
        """The outcome; `events` and the log's blocks are there even if it fails."""
        of_run = types.SimpleNamespace(
            setup=types.SimpleNamespace(config=self.config),
            team=self,
            programs=types.SimpleNamespace(trainer=self, rates=self),
            stop_request=self,
        )
        with MlperfLog(path) as log:
            initialise(log)
            with log.run() as timed:
                timed.ledger = Ledger(clock=lambda: self.clock.now)
                outputs = run.Outputs(
                    metrics=self,
                    progress=self,
                    saves=self,
                    profile=Profile(None, None, nullcontext),
                )
                in_order = run.list_of_events(of_run, timed, outputs, self.evaluate)
                return run.train_by_events(
                    self.config, timed, in_order, self.train_steps, step=self.step
                )
