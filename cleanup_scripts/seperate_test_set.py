"""Clean-up stage .4: takes the evaluation articles out; writes them and their MD5s."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import gathering, stages
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("seperate_test_set.py")
def main() -> None:
    """Runs the stage over all files, then writes the test set."""
    parser = stages.parser(__doc__, data="./*/*.compact", input_suffix=".3", output_suffix=".4")
    parser.add_argument("--seed", type=int, default=12345, help="seed of the choice")
    parser.add_argument("--num_test_articles", type=int, default=10000, help="articles to take")
    parser.add_argument("--test_output", default="./results/eval", help="without .txt and .md5")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    files = stages.input_files(args.data)
    jobs = [
        (
            name + args.input_suffix,
            name + args.output_suffix,
            gathering.num_test_articles_of(index, len(files), args.num_test_articles),
            args.seed + gathering.SEED_STEP * index,
        )
        for index, name in enumerate(files)
    ]
    run = gathering.write_stage_4
    found = stages.run(
        run,
        jobs,
        num_workers=args.nworker,
        description="separate test set",
        also_written=[args.test_output + suffix for suffix in (".txt", ".md5")],
    )
    articles = [article for of_a_file in found for article in of_a_file]
    gathering.write_test_set(articles, args.test_output)


if __name__ == "__main__":
    sys.exit(main())
