"""The summary of a data set: a screen of text, and histograms as a picture."""

from collections.abc import Mapping

import numpy as np

from mlperf_bert.data.manifest import Manifest
from mlperf_bert.files import paths
from mlperf_bert.files.whole import written_beside

PICTURE_NAME = "histograms.png"


def summary(
    manifest: Manifest, *, num_made: int, seconds: float, samples_needed: Mapping[int, float]
) -> str:
    """Returns the numbers of parts, examples and bytes, the time, and how many passes runs need.

    Args:
      num_made: parts made by this run, in so many `seconds`.
      samples_needed: global batch size -> samples a run needs on average.
    """
    parts = manifest.parts.values()
    examples = sum(part.examples for part in parts)
    num_bytes = sum(part.bytes for part in parts)
    kind = (
        "whole parts"
        if manifest.is_whole
        else f"the first {manifest.parameters['examples_per_part']} examples of each part: "
        "a uniform sample, not fit for a submission"
    )
    lines = [
        f"{len(parts)} parts, {examples:,} examples, {num_bytes:,} bytes ({kind})",
        f"{num_made} parts made in {seconds:.1f} s, {len(parts) - num_made} were there already",
        "a run needs on average, by global batch size, so many samples, or passes over these:",
    ]
    lines += [
        f"{batch:>10}: {needed:>11,.0f}  {needed / max(examples, 1):10.2f}"
        for batch, needed in sorted(samples_needed.items())
    ]
    return "\n".join(lines)


def save_picture(path: paths.Location, manifest: Manifest) -> None:
    """Draws the histograms of sequence lengths and predictions, added up over the parts."""
    # matplotlib takes as long as a part of little text; whoever draws nothing need not wait for it.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2)
    panels = (
        ("length_histogram", "max_seq_length", "tokens per example"),
        ("predictions_histogram", "max_predictions_per_seq", "masked tokens per example"),
    )
    for axis, (histogram, longest, label) in zip(axes, panels):
        counts = np.sum([getattr(part, histogram) for part in manifest.parts.values()], axis=0)
        width = manifest.parameters[longest] / len(counts)
        axis.bar(np.arange(len(counts)) * width, counts, width, align="edge")
        axis.set(xlabel=label, ylabel="examples")
    with written_beside(path) as file:
        figure.savefig(file, format="png")
