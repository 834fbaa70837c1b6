"""What does the demo's model reach in one, two, four minutes on this machine?

    python -m benchmarks.budget --minutes=1,2,4

Makes the demo's data and checkpoint, then trains from there with each budget. No run stops at a
target. Prints accuracy, samples, samples per second of the budget, and the last
learning rate, and writes OUTPUT.md and OUTPUT.png. The folder OUTPUT is kept; finished trainings
are not run again.
"""

import argparse
import math
import shlex
import sys
import time
from pathlib import Path

import demo.__main__ as the_demo
from demo.picture import read_metrics
from mlperf_bert.files import paths
from mlperf_bert.files.whole import write_whole
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf import results, rules
from mlperf_bert.options import duration
from pages import charts

NUM_TRAIN_STEPS = 2 * the_demo.NUM_TRAIN_STEPS
"""More than four minutes allow on two cores."""


def train(folder: Path, seed: int, seconds: float) -> tuple[list[dict], list[dict]]:
    """The lines of metrics of one training, and those of its evaluations."""
    _, command = the_demo.training_step(folder, seed)
    run = folder / duration(seconds)
    if not results.has_ended(run):
        given = f"--time_budget={duration(seconds)} --target_accuracy=1"
        given += f" --num_train_steps={NUM_TRAIN_STEPS} --output_dir={shlex.quote(str(run))}"
        the_demo.run_steps([(duration(seconds), f"{command} {given}")], time.monotonic())
    return read_metrics(run / "metrics.jsonl")


def _budgets(minutes: str) -> list[float]:
    """Seconds of each."""
    found = [60 * float(each) for each in minutes.split(",")]
    if not all(0 < seconds < math.inf for seconds in found):
        raise ValueError
    return found


@ends_in_one_line("budget")
def main() -> None:
    """Prepares the data, trains with each budget in turn; prints the table, draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=_budgets, default="1,2,4", help="with commas")
    parser.add_argument("--seed", type=int, default=1, help="of text, weights and order")
    parser.add_argument("--output", type=Path, default=Path("build/budget"))
    args = parser.parse_args(paths.words_with_home())
    output = args.output.resolve()
    folder = output / f"seed_{args.seed}"
    if not (folder / "eval.tfrecord").exists():
        the_demo.make_data(folder, args.seed, time.monotonic())
    found = {seconds: train(folder, args.seed, seconds) for seconds in args.minutes}
    heading = "| budget | accuracy | samples | samples/s | last learning rate |"
    lines = [heading, "|---|---|---|---|---|"]
    for seconds, (training, evaluations) in found.items():
        last, rate = evaluations[-1], training[-1]["learning_rate"]
        lines.append(
            f"| {duration(seconds)} | {last['masked_lm_accuracy']:.4f} "
            f"| {last['samples']:,} | {last['samples'] / seconds:,.0f} | {rate:.5f} |"
        )
    table = "\n".join(lines) + "\n"
    write_whole(output.with_suffix(".md"), table)
    with charts.png(output.with_suffix(".png"), (8, 4.5)) as [[axes]]:  # 1,200 pixels wide
        for seconds, (_, evaluations) in found.items():
            minutes = [line["time_budget_spent_seconds"] / 60 for line in evaluations]
            accuracy = [line["masked_lm_accuracy"] for line in evaluations]
            axes.plot(minutes, accuracy, linewidth=1.2, label=duration(seconds))
        axes.axhline(rules.TARGET_MASKED_LM_ACCURACY, color=charts.INK, linestyle="--")
        axes.set_xlabel("minutes since run_start")
        axes.set_ylabel("masked-LM accuracy")
        axes.legend(loc="lower right", title="budget")
    print(table)


if __name__ == "__main__":
    sys.exit(main())
