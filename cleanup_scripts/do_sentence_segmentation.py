"""Clean-up stage .3: one sentence a line."""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import segmentation, stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="./*/*.compact", help="glob of the raw files")
    parser.add_argument("--input_suffix", default=".2", help="suffix of the input files")
    parser.add_argument("--output_suffix", default=".3", help="suffix of the output files")
    parser.add_argument("--nworker", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--punkt", help="folder of Punkt's tables; default: nltk's punkt_tab")
    args = parser.parse_args()
    try:
        files = stages.input_files(args.data)
        punkt = segmentation.find_punkt(args.punkt, os.environ.get("NLTK_DATA"))
        segmentation.warn_if_not_published(punkt)
        jobs = [(name + args.input_suffix, name + args.output_suffix, punkt) for name in files]
        run = segmentation.write_stage_3
        stages.run(run, jobs, num_workers=args.nworker, description="split sentences")
    except (ValueError, OSError) as error:
        sys.exit(f"do_sentence_segmentation.py: {error}")


if __name__ == "__main__":
    main()
