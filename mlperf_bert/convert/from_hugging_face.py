"""Makes an initial checkpoint and a bert_config.json of a BERT in Hugging Face's layout."""

from mlperf_bert import signals
from mlperf_bert.tensorflow_import import tensorflow

if __name__ == "__main__":
    signals.ends_at_once()  # first: the imports take seconds
    tensorflow()  # before other modules import it

import dataclasses

from mlperf_bert import command_line
from mlperf_bert.convert import importing
from mlperf_bert.options import MAX_SEED, option, required_path


@dataclasses.dataclass(frozen=True)
class Import:
    """What is imported, and where to."""

    model: str = required_path("Folder with its config.json and model.safetensors.")
    output_dir: str = required_path("Directory to make.", may_have_wildcards=False)
    seed: int = option(0, "Seed of the heads that the model lacks.", at_least=0, at_most=MAX_SEED)


def main():
    """Writes the directory."""
    settings = command_line.read(Import)
    print(
        *importing.import_model(settings.model, settings.output_dir, seed=settings.seed), sep="\n"
    )


if __name__ == "__main__":
    command_line.run(main, Import)
