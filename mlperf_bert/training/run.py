"""One whole run: check the input, build, warm up, then train against the clock."""

import contextlib
import dataclasses
import time

import tensorflow as tf

from mlperf_bert.checkpoints import initial, names
from mlperf_bert.checkpoints.state import RunState
from mlperf_bert.data import tfrecord, validity
from mlperf_bert.input import pipeline
from mlperf_bert.mlperf import caches, killed, rules
from mlperf_bert.mlperf.log import Hyperparameters, MlperfLog, SubmissionInfo
from mlperf_bert.mlperf.timed_run import Run
from mlperf_bert.model import pretrainer
from mlperf_bert.optimization.aggregation import GradientAggregationOptimizer
from mlperf_bert.optimization.optimizers import create_optimizer
from mlperf_bert.optimization.schedules import WarmupPolynomialDecay
from mlperf_bert.progress import Progress
from mlperf_bert.training import agreement, compilation, evaluations, loop, preflight
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.evaluation import Evaluator
from mlperf_bert.training.output import Result, StartUp, process_start_time, run_logs
from mlperf_bert.training.profiling import StepProfiler
from mlperf_bert.training.reporting import MetricsWriter
from mlperf_bert.training.steps import Trainer
from mlperf_bert.training.strategy import one_cpu, replica_batch_size


class TrainingRun:
    """The parts of a run, built before the clock starts; `train` runs it."""

    def __init__(self, config: RunConfig):
        """Checks everything that can be checked without touching data; writes nothing.

        Raises:
          ValueError: with a line for everything that is wrong, and how to fix it.
        """
        self.config = config
        self.start_time = process_start_time()
        self.start_up = StartUp(self.start_time)
        self.start_up.done("imports")
        self._run: Run | None = None
        self.team = agreement.agree(config, on_loss=self._abort)
        with self.team.failures_told():
            self._prepare()

    def _prepare(self) -> None:
        config = self.config
        found = preflight.inspect(config, resumes=self.team.resumes)
        found.require_no_errors()
        for finding in found.findings:
            self._say(finding)
        self.bert_config, self.strategy = found.bert_config, found.strategy
        self.files, self.eval_files = found.files, found.eval_files
        self.limits = config.shape.for_model(self.bert_config)
        self.seed = self.team.seed
        self.start_up.done("checks")

    def train(self) -> Result | None:
        """Builds, warms up and trains; leaves nothing behind if the data turn out to be bad.

        Of several processes only the chief writes anything, and returns a result.

        Raises:
          ValueError: bad checkpoint or data.
          FloatingPointError: the loss is no longer finite.
          loop.Interrupted: a signal came; the checkpoint is saved.
        """
        with self.team.failures_told(), loop.StopRequest() as stop_request:
            outcome = self._train(stop_request)
            self.team.finish()
        if not self.team.is_chief:
            return None
        return Result(
            status=_status(outcome),
            accuracy=outcome.accuracy,
            samples=outcome.step * self.config.train_batch_size,
            seed=self.seed,
            start_time=self.start_time,
            seconds=time.time() - self.start_time,
        )

    def _train(self, stop_request: loop.StopRequest) -> loop.Outcome:
        output = self.team.output
        run_log = MlperfLog(output.log_path() if self.team.is_chief else None, echo=False)
        try:
            self._initialise(run_log)
            stop_request.defer()
            with run_log.run() as run:
                self._run = run
                self._check_data(run, run_log)
                self._record("running")  # before the log: alone it would be another run's
                if self.team.is_chief:
                    killed.close_logs(run_logs(output.path))
                run_log.commit()
                outcome = self._train_against_the_clock(run, stop_request)
        except FloatingPointError:
            self._record("aborted")
            raise
        finally:
            run_log.discard()
        self._record(_status(outcome))
        return outcome

    def _abort(self) -> None:
        """Another process is lost: the log of this run still gets its run_stop."""
        if self._run:
            self._run.stop_unless_stopped()

    def _record(self, status: str) -> None:
        if self.team.is_chief:
            self.team.output.record(status=status, seed=self.seed)

    def _say(self, text) -> None:
        if self.team.is_chief:
            print(text, flush=True)

    def _initialise(self, run_log: MlperfLog) -> None:
        cleared = None
        if self.config.drop_caches:
            cleared = caches.drop() is None
        run_log.init_start(cache_cleared=cleared)
        run_log.submission(self._submission())
        run_log.hyperparameters(self._hyperparameters())
        run_log.event("gradient_normalization", self.config.normalization)
        run_log.event("num_replicas", self.strategy.num_replicas_in_sync)
        self._build()
        if not self.team.resumes:
            all_names = [w.tf1_name for w in names.weights(self.bert_config.num_hidden_layers)]
            run_log.weights_initialization(all_names)
        run_log.init_stop()

    def _submission(self) -> SubmissionInfo:
        departures = preflight.departures(self.config, self.bert_config, self.files)
        if self.team.resumes:
            departures.append(rules.Issue("run", "one from start to end", "one that was resumed"))
        if departures:
            lines = "".join(f"\n  - {departure}" for departure in departures)
            self._say(f"This run is no submission to the closed division:{lines}")
            return dataclasses.replace(self.config.submission, division="open")
        return self.config.submission

    def _hyperparameters(self) -> Hyperparameters:
        config = self.config
        return Hyperparameters(
            global_batch_size=config.global_batch_size,
            gradient_accumulation_steps=config.steps_per_update,
            optimizer=config.optimizer.name,
            learning_rate=config.learning_rate,
            epsilon=config.optimizer.epsilon,
            num_train_steps=config.num_train_steps,
            num_warmup_steps=config.num_warmup_steps,
            start_warmup_step=config.start_warmup_step,
            beta_1=config.optimizer.beta_1,
            beta_2=config.optimizer.beta_2,
            weight_decay_rate=config.optimizer.weight_decay_rate,
            poly_power=config.poly_power,
            max_seq_length=config.shape.max_seq_length,
            max_predictions_per_seq=config.shape.max_predictions_per_seq,
            num_eval_samples=None,
            seed=self.seed,
        )

    def _build(self) -> None:
        config = self.config
        self.rates = WarmupPolynomialDecay(
            learning_rate=config.learning_rate,
            num_train_steps=config.num_train_steps,
            num_warmup_steps=config.num_warmup_steps,
            start_warmup_step=config.start_warmup_step,
            poly_power=config.poly_power,
            steps_per_update=config.steps_per_update,
        )
        compiled = compilation.choose(
            config.jit_compile,
            strategy=self.strategy,
            packs_sequences=config.pack_sequences,
        )
        self._say(f"computing in {config.precision}; {compiled}")
        with self.strategy.scope():
            self.model = pretrainer.build_pretrainer(
                self.bert_config,
                seed=self.seed,
                precision=config.precision,
                compile_passes=compiled.passes,
                pack_sequences=config.pack_sequences,
            )
            optimizer = GradientAggregationOptimizer(
                create_optimizer(config.optimizer, self.rates, compiled=compiled.passes),
                steps_per_update=config.steps_per_update,
                clip_after_allreduce=config.clip_by_global_norm_after_gradient_allreduce,
            )
        self.trainer = Trainer(
            model=self.model,
            optimizer=optimizer,
            strategy=self.strategy,
            batch_size=config.train_batch_size,
            normalization=config.normalization,
            compiled=compiled,
        )
        self.evaluator = Evaluator(model=self.model, strategy=self.strategy)
        self.state = RunState(
            config.output_dir,
            parts={
                "model": self.model,
                "optimizer": optimizer.optimizer,
                "accumulators": optimizer.accumulators,
                "step": self.trainer.step,
                "generators": pretrainer.random_generators(self.model),
            },
            keep_checkpoint_max=config.keep_checkpoint_max,
            is_disposable=self._is_disposable,
        )
        self.start_up.done("model")
        goes_on = self.team.resumes and self.state.latest_step is not None
        self._warm_up(keeps_weights=not goes_on and not config.init_checkpoint)
        self.start_up.done("compilation")
        if goes_on:
            self.team.require_same_step(self.state.latest_step)
            self.state.restore()
        elif config.init_checkpoint:
            initial.load_initial_weights(
                self.trainer.variables_to_train,
                config.init_checkpoint,
                num_hidden_layers=self.bert_config.num_hidden_layers,
            )
        self.start_up.done("weights")

    def _is_disposable(self, step: int) -> bool:
        """A checkpoint that waits for its evaluation is kept."""
        if self.eval_files:
            return True
        return step in evaluations.evaluated_steps(self.team.output.path)

    def _warm_up(self, *, keeps_weights: bool) -> None:
        shape, config = self.config.shape, self.config
        size = replica_batch_size(
            config.train_batch_size, self.strategy.num_replicas_in_sync, flag="train_batch_size"
        )
        batches = pipeline.synthetic_batches(
            shape, batch_size=size, pack_sequences=config.pack_sequences
        )
        self.trainer.warm_up(batches, keeps_weights=keeps_weights)
        if self.eval_files:
            size = config.eval_batch_size
            batch = pipeline.synthetic_batch(shape, batch_size=size)
            self.evaluator.warm_up(batch, tf.ones([size]))

    def _check_data(self, run: Run, run_log: MlperfLog) -> None:
        """The first touch of the data: the clock runs, and the log is not on disk yet."""
        for path in [self.files[0], *self.eval_files[:1]]:
            validity.check_first_record(path, self.limits)
        if self.eval_files:
            found = sum(tfrecord.count_records(path) for path in self.eval_files)
            limit = (self.config.max_eval_steps or found) * self.config.eval_batch_size
            run.eval_samples(min(found, limit))
            if issue := rules.departure_of_evaluation(found):
                self._say(f"This run is no submission to the closed division:\n  - {issue}")
                run_log.declare_open()

    def _train_against_the_clock(self, run: Run, stop_request: loop.StopRequest) -> loop.Outcome:
        config = self.config
        start_step = int(self.trainer.step.numpy())
        resumed_step = start_step if self.team.resumes else None
        interval_steps = config.evaluation_interval_samples // config.train_batch_size
        own_output_dir = config.output_dir if self.team.is_chief else None
        iterator = self.trainer.batches(lambda context: self._own_batches(context, start_step))
        self.state.attach_input(iterator)
        with (
            contextlib.closing(MetricsWriter(own_output_dir, resumed_step=resumed_step)) as metrics,
            contextlib.closing(
                Progress(
                    total=config.num_train_steps * config.train_batch_size,
                    initial=start_step * config.train_batch_size,
                    unit="samples",
                    description="training",
                    silent=not self.team.is_chief,
                )
            ) as progress,
            contextlib.closing(StepProfiler(config.profile_steps, own_output_dir)) as profiler,
            pipeline.bad_input_named(
                [*self.files, *self.eval_files],
                self.limits,
                packed=self.files if config.pack_sequences else (),
            ),
        ):
            training = loop.TrainingLoop(
                trainer=self.trainer,
                schedule=loop.Schedule(
                    num_train_steps=config.num_train_steps,
                    evaluation_interval_steps=interval_steps if self.eval_files else None,
                    save_checkpoints_steps=config.save_checkpoints_steps,
                    log_every_steps=config.log_every_steps,
                    iterations_per_loop=config.iterations_per_loop,
                ),
                target_accuracy=config.target_accuracy,
                learning_rate_at=lambda step: float(self.rates.at_step(step)),
                evaluate=self._evaluate,
                save=self._save,
                metrics=metrics,
                progress=progress,
                profiler=profiler,
                stop_request=stop_request,
            )
            if start_step == 0 and not self.eval_files:
                self._save(0)  # for whoever evaluates the checkpoints
            self.start_up.done("data")
            self._say(self.start_up)
            outcome = training.run(iterator, run, start_step=start_step)
            if config.pack_sequences and training.num_rows:
                share = training.num_real_tokens / (training.num_rows * config.shape.max_seq_length)
                self._say(
                    f"packing: {share:.1%} of the tokens of {training.num_rows} rows were real"
                )
            return outcome

    def _save(self, step: int) -> None:
        if self.team.is_chief:
            self.state.save(step)

    def _own_batches(self, context: tf.distribute.InputContext, start_step: int):
        """This process's share of the input, from where the run stands.

        On one CPU the saved iterator finds its place itself.
        """
        config, workers = self.config, context.num_input_pipelines
        start = 0 if one_cpu(self.strategy) else start_step * config.train_batch_size // workers
        return pipeline.training_batches(
            self.files,
            self.limits,
            batch_size=context.get_per_replica_batch_size(config.train_batch_size),
            seed=self.seed if config.shuffle else None,
            deterministic=config.deterministic,
            num_workers=workers,
            worker=context.input_pipeline_id,
            first_example=start,
            pack_sequences=config.pack_sequences,
        )

    def _evaluate(self):
        config = self.config
        return self.evaluator.evaluate(
            pipeline.evaluation_batches(
                self.eval_files,
                self.limits,
                batch_size=config.eval_batch_size,
                max_batches=config.max_eval_steps,
            )
        )


def _status(outcome: loop.Outcome) -> str:
    return "success" if outcome.reached_target else "aborted"
