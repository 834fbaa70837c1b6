"""Clean-up stage .1: drops the <doc> tags and titles of WikiExtractor's output."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import articles, stages, wiki
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("cleanup_file.py")
def main() -> None:
    """Runs the stage over all files."""
    parser = stages.parser(__doc__, data="./wiki_??", input_suffix="", output_suffix=".1")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    files = stages.input_files(args.data)
    stages.warn_of_links(files)
    articles.require_text(files)
    jobs = [(name + args.input_suffix, name + args.output_suffix) for name in files]
    stages.run(wiki.write_stage_1, jobs, num_workers=args.nworker, description="drop tags")


if __name__ == "__main__":
    sys.exit(main())
