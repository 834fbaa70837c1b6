"""Clean-up stage .3: one sentence a line.

Files named .jsonl or .jsonl.zst, {"text": ...} a line, are read without --input_suffix.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert import paths
from mlperf_bert.data import documents, segmentation, stages
from mlperf_bert.data.punkt import find_or_fetch_punkt, warn_if_not_published


def _split(write, input_path: str, output_path: str, punkt: paths.Location) -> None:
    write(input_path, output_path, punkt)


def main() -> None:
    """Runs the stage over all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="./*/*.compact", help="glob of the raw files")
    parser.add_argument("--input_suffix", default=".2", help="suffix of the input files")
    parser.add_argument("--output_suffix", default=".3", help="suffix of the output files")
    parser.add_argument("--nworker", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--punkt", help="folder of Punkt's tables; default: nltk's punkt_tab")
    args = parser.parse_args()
    try:
        files = stages.input_files(args.data)
        punkt = find_or_fetch_punkt(args.punkt)
        warn_if_not_published(punkt)
        jobs = [
            (documents.write_sentences, name, name + args.output_suffix, punkt)
            if name.endswith(documents.SUFFIXES)
            else (
                segmentation.write_stage_3,
                name + args.input_suffix,
                name + args.output_suffix,
                punkt,
            )
            for name in files
        ]
        stages.run(_split, jobs, num_workers=args.nworker, description="split sentences")
    except (ValueError, OSError) as error:
        sys.exit(f"do_sentence_segmentation.py: {error}")


if __name__ == "__main__":
    main()
