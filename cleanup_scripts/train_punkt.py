"""Learns the sentence splitter's tables from your own text, for lack of the published ones.

The result goes to do_sentence_segmentation.py --punkt (PUNKT=... for process_wiki.sh). What it
splits is not the official data.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import punkt, stages
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("train_punkt.py")
def main() -> None:
    """Writes the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="./wiki_??", help="glob of the raw files")
    parser.add_argument("--input_suffix", default="", help="suffix of the input files")
    parser.add_argument("--out_dir", required=True, help="folder of the four tables")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    files = stages.input_files(args.data)
    texts = (stages.read_text(name + args.input_suffix) for name in files)
    punkt.write_tables(punkt.learn_tables(texts), paths.location(args.out_dir))


if __name__ == "__main__":
    sys.exit(main())
