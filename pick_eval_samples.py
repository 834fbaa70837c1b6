"""Picks evenly spaced examples of eval_intermediate for the evaluation shard eval_10k."""

from mlperf_bert import signals

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds

from mlperf_bert import command_line
from mlperf_bert.data.evaluation_shard import PickConfig, pick


def main():
    """Writes the examples that are picked."""
    config = command_line.read(PickConfig)
    num_examples = pick(config)
    repeated = ", some more than once" if config.num_examples_to_pick > num_examples else ""
    print(f"picked {config.num_examples_to_pick:,} of {num_examples:,} examples{repeated}")


if __name__ == "__main__":
    command_line.run(main, PickConfig)
