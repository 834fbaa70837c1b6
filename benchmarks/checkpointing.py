"""What a checkpoint costs the training: waiting for it, against writing it while training goes on.

    python -m benchmarks.checkpointing --rounds=3

BERT-large with LAMB (weights and slots: 4 GB) in a process of its own for each way of saving, which
take turns. A step here is some matrix products, then LAMB's update of all weights and slots; there
is not a forward and backward pass. Printed are medians, least and greatest:

- stands still: seconds until the training goes on
- complete: seconds until the checkpoint can be read
- first step: seconds that the step after it takes longer; there the copy is made
- other steps: how much longer the others take that begin before it is complete
- memory: the most that the process held, of which the state and TensorFlow are a part

The third way is TensorFlow's own, tf.train.CheckpointOptions(enable_async=True).
"""

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.processes import in_a_process
from mlperf_bert.options import whole_number, words_with_home
from mlperf_bert.tensorflow_import import tensorflow

WAYS = ("synchronous", "asynchronous", "TensorFlow's own")
NUM_SAVES, STEPS_BETWEEN = 2, 3


def training() -> tuple[dict, Callable[[], None]]:
    """What a checkpoint holds, and a step."""
    tf = tensorflow()  # in the child alone
    from mlperf_bert.mlperf.rules import BERT_LARGE
    from mlperf_bert.model import pretrainer
    from mlperf_bert.model.config import BertConfig
    from mlperf_bert.optimization.config import OptimizerConfig
    from mlperf_bert.optimization.optimizers import GradientAggregationOptimizer, create_optimizer

    strategy = tf.distribute.OneDeviceStrategy("CPU:0")
    with strategy.scope():
        model = pretrainer.build_pretrainer(BertConfig(**BERT_LARGE), seed=1)
        variables = pretrainer.trained_variables(model)
        lamb = create_optimizer(OptimizerConfig(), 1e-3, compiled=False)
        optimizer = GradientAggregationOptimizer(lamb, variables)
    gradients = [tf.fill(variable.shape, 1e-3) for variable in variables]
    factor = tf.random.normal([4096, 4096])

    @tf.function
    def step() -> None:
        product = factor
        for _ in range(4):
            product = tf.matmul(product, factor)
        with tf.control_dependencies([product]):
            strategy.run(lambda: optimizer.step(gradients))

    return {"model": model, "optimizer": lamb}, step


def measure(way: str, folder: str) -> dict:
    """Trains and saves; of each save the figures, and of the process the memory in bytes."""
    tf = tensorflow()
    from mlperf_bert.checkpoints.state import RunState, Saves

    parts, step = training()
    state = RunState(folder, parts=parts, keep_checkpoint_max=1)
    saves = Saves(
        state, flush=lambda: None, publish=lambda: None, asynchronous=way == "asynchronous"
    )
    theirs = tf.train.Checkpoint(**parts)
    options = tf.train.CheckpointOptions(enable_async=True)
    found = []
    step()  # traces it
    with saves:
        for number in range(NUM_SAVES):
            alone = [seconds_of(step) for _ in range(STEPS_BETWEEN)]
            index = Path(f"{folder}/model.ckpt-{number}.index")
            began = time.time()
            if way == "TensorFlow's own":
                theirs.write(str(index.with_suffix("")), options=options)
            else:
                saves.save(number)
            still, meanwhile = time.time() - began, [seconds_of(step)]
            while not index.exists():
                meanwhile.append(seconds_of(step))
            complete = index.stat().st_mtime - began
            figures = {"still": still, "complete": complete, "meanwhile": meanwhile}
            found.append({**figures, "alone": statistics.median(alone)})
    return {"saves": found, "bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def seconds_of(function: Callable[[], object]) -> float:
    """Times of one call."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def spread(values: list[float], digits: int = 2) -> str:
    """Median, least and greatest."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def report(found: dict[str, list[dict]]) -> None:
    """Prints a row for each way of saving, and the ratio that counts."""
    print("| | stands still, s | complete, s | first step, s | other steps | memory, GB |")
    print("|---|---|---|---|---|---|")
    stills = {}
    for way, turns in found.items():
        saves = [save for turn in turns for save in turn["saves"]]
        stills[way] = statistics.median(save["still"] for save in saves)
        later = [s / save["alone"] - 1 for save in saves for s in save["meanwhile"][1:]]
        print(
            f"| {way} | {spread([save['still'] for save in saves])} "
            f"| {spread([save['complete'] for save in saves])} "
            f"| {spread([save['meanwhile'][0] - save['alone'] for save in saves])} "
            f"| {f'{statistics.median(later):+.0%}' if later else ''} "
            f"| {spread([turn['bytes'] / 1e9 for turn in turns], 1)} |"
        )
    ratio = stills["asynchronous"] / stills["synchronous"]
    print(f"asynchronous: stands still {ratio:.3f} of the time of synchronous")


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=whole_number, default=3)
    parser.add_argument("--output", help="a folder on the disk to measure; default: temporary")
    given = parser.parse_args(words_with_home())
    found: dict[str, list[dict]] = {way: [] for way in WAYS}
    for number in range(given.rounds):
        for way, turns in found.items():
            with tempfile.TemporaryDirectory(prefix="checkpointing-", dir=given.output) as folder:
                turns.append(in_a_process(measure, way, folder))
            print(f"round {number + 1}: {way}: {json.dumps(turns[-1])}", flush=True)
    report(found)


if __name__ == "__main__":
    main()
