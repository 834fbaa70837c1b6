"""Draw masked-LM accuracy and loss over the samples of a run.

python -m demo.picture --metrics_file=build/demo/run/metrics.jsonl --output_file=report.png
"""

import argparse
import sys
from pathlib import Path

from mlperf_bert.files import errors, json_text
from mlperf_bert.files.whole import read_regular_file, written_beside
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.mlperf.rules import TARGET_MASKED_LM_ACCURACY
from mlperf_bert.options import expanded_arguments
from pages import BLUE, ORANGE, RED, png

_DRAWN = {"train": ("samples", "loss"), "eval": ("samples", "loss", "masked_lm_accuracy")}


def read_metrics(path: Path) -> tuple[list[dict], list[dict]]:
    """Returns the training lines and the evaluation lines of a metrics.jsonl."""
    lines: dict[str, list[dict]] = {kind: [] for kind in _DRAWN}
    for number, text in enumerate(read_regular_file(path).splitlines(), start=1):
        with errors.named(f"{path}: line {number}", damaged="give the metrics.jsonl of a run"):
            line = json_text.parse_object(text)
            if (kind := line["kind"]) in lines:
                lines[kind].append({name: float(line[name]) for name in _DRAWN[kind]})
    if not lines["eval"]:
        raise ValueError(f"{path} holds no evaluation: the run ended before its first one")
    return lines["train"], lines["eval"]


def draw(metrics_file: Path, output_file: Path) -> None:
    """Writes the picture, 1,200 by 900 pixels."""
    training, evaluations = read_metrics(metrics_file)
    samples = [line["samples"] for line in evaluations]
    accuracies = [line["masked_lm_accuracy"] for line in evaluations]
    losses = [line["loss"] for line in evaluations]
    target = TARGET_MASKED_LM_ACCURACY
    with written_beside(output_file) as file, png(file, (8, 6), rows=2) as [[above], [below]]:
        above.plot(samples, accuracies, "o-", color=BLUE, label="on held-out articles")
        above.axhline(target, color=RED, linestyle="--", label=f"target {target:.3f}")
        above.annotate(
            f"{accuracies[-1]:.4f}",
            (samples[-1], accuracies[-1]),
            textcoords="offset points",
            xytext=(-6, 6),
            ha="right",
        )
        above.set_ylim(0, 1)
        above.set_ylabel("masked-LM accuracy")
        above.legend(loc="lower right")
        trained = [line["samples"] for line in training]
        below.plot(trained, [line["loss"] for line in training], color=ORANGE, label="training")
        below.plot(samples, losses, "o-", color=BLUE, label="held-out articles")
        below.set_ylim(bottom=0)
        below.set_ylabel("loss (nats)")
        below.legend(loc="upper right")
        above.sharex(below)
        above.tick_params(labelbottom=False)
        below.set_xlabel("training samples")
        below.xaxis.set_major_formatter("{x:,.0f}")
        below.set_xlim(left=0)


@ends_in_one_line("demo.picture")
def main() -> None:
    """Draws the picture of one run."""
    parser = argparse.ArgumentParser(prog="python -m demo.picture")
    parser.add_argument("--metrics_file", type=Path, required=True)
    parser.add_argument("--output_file", type=Path, required=True)
    arguments = parser.parse_args(expanded_arguments())
    if arguments.output_file.suffix != ".png":
        raise ValueError(f"--output_file={arguments.output_file}: give a name that ends with .png")
    draw(arguments.metrics_file, arguments.output_file)
    print(arguments.output_file)


if __name__ == "__main__":
    sys.exit(main())
