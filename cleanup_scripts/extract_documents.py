"""Documents to text as WikiExtractor writes it: OUT_DIR/NAME/wiki_*.

Their names end with .parquet, .jsonl or .json, the last two also with .gz or .zst.

The files may also lie in a bucket, or on Hugging Face: hf://datasets/OWNER/NAME/FOLDER/*.parquet.
"""

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import articles, stages
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("extract_documents.py")
def main() -> None:
    """Writes the text of all files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="glob of the documents")
    parser.add_argument("--text_column", default="text", help="column or key of the text")
    parser.add_argument("--out_dir", default="text", help="where to")
    parser.add_argument("--nworker", type=int, default=os.cpu_count(), help="processes")
    args = parser.parse_args(paths.words_with_home())
    files = stages.input_files(args.data)
    stages.warn_of_links(files)
    folders = articles.folders_of(files, paths.location(args.out_dir))
    jobs = [(path, folder, args.text_column) for path, folder in folders.items()]
    run = articles.write_articles
    stages.run(run, jobs, num_workers=args.nworker, description="extract documents")


if __name__ == "__main__":
    sys.exit(main())
