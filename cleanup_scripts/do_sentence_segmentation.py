"""Clean-up stage .3: one sentence a line.

Documents (.parquet, .jsonl, .json, the last two also .gz or .zst) are read without --input_suffix,
and not cleaned. They may lie on Hugging Face (hf://datasets/OWNER/NAME/FILE); then the output is in
the working folder.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import documents, segmentation, stages
from mlperf_bert.data.punkt import find_or_fetch_punkt, warn_if_not_published
from mlperf_bert.files import paths
from mlperf_bert.files.hugging_face import HUGGING_FACE
from mlperf_bert.files.paths import Location
from mlperf_bert.messages import ends_in_one_line


def _split(input_path: str, output_path: str, punkt: Location, text_column: str) -> None:
    if input_path.endswith(documents.SUFFIXES):
        documents.write_sentences(input_path, output_path, punkt, text_column)
    else:
        segmentation.write_stage_3(input_path, output_path, punkt)


def _output_paths(files: list[str], suffix: str) -> list[str]:
    found = [
        (name.rsplit("/", 1)[-1] if name.startswith(HUGGING_FACE) else name) + suffix
        for name in files
    ]
    if len(set(found)) < len(found):
        repeated = next(name for name in found if found.count(name) > 1)
        raise ValueError(f"several files would be written to {repeated}; give one folder at a time")
    return found


@ends_in_one_line("do_sentence_segmentation.py")
def main() -> None:
    """Runs the stage over all files."""
    parser = stages.parser(__doc__, data="./*/*.compact", input_suffix=".2", output_suffix=".3")
    parser.add_argument("--text_column", default="text", help="column or key of documents")
    parser.add_argument("--punkt", help="folder of Punkt's tables; default: nltk's punkt_tab")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    files = stages.input_files(args.data)
    stages.warn_of_links([name for name in files if name.endswith(documents.SUFFIXES)])
    punkt = find_or_fetch_punkt(args.punkt)
    warn_if_not_published(punkt)
    inputs = [
        name if name.endswith(documents.SUFFIXES) else name + args.input_suffix for name in files
    ]
    outputs = _output_paths(files, args.output_suffix)
    jobs = [(*names, punkt, args.text_column) for names in zip(inputs, outputs)]
    stages.run(_split, jobs, num_workers=args.nworker, description="split sentences")


if __name__ == "__main__":
    sys.exit(main())
