"""Clean-up stage .2: applies the text rules to many files, or to one: clean.py INPUT OUTPUT."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import stages, wiki
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("clean.py")
def main() -> None:
    """Runs the stage over one file or many."""
    parser = stages.parser(__doc__, data="./wiki_??", input_suffix=".1", output_suffix=".2")
    parser.add_argument("one_file", nargs="*", metavar="INPUT OUTPUT", help="just this file")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    if len(args.one_file) not in (0, 2):
        parser.error("give INPUT and OUTPUT, or --data")
    jobs = (
        [tuple(args.one_file)]
        if args.one_file
        else [
            (name + args.input_suffix, name + args.output_suffix)
            for name in stages.input_files(args.data)
        ]
    )
    stages.run(wiki.write_stage_2, jobs, num_workers=args.nworker, description="apply rules")


if __name__ == "__main__":
    sys.exit(main())
