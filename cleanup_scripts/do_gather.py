"""Gathers the cleaned files into parts of about the same size."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mlperf_bert.data import gathering, stages
from mlperf_bert.files import paths
from mlperf_bert.messages import ends_in_one_line


@ends_in_one_line("do_gather.py")
def main() -> None:
    """Writes the parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="~/book-corpus-feb-stn/*/*.txt", help="glob of raw files")
    parser.add_argument("--input_suffix", default=".3", help="suffix of the cleaned files")
    parser.add_argument("--out_dir", default="~/book-corpus-large-gather/", help="where to")
    parser.add_argument("--num_outputs", type=int, default=500, help="the number in the names")
    parser.add_argument("--block_size", type=float, default=32.0, help="MB of raw text in a part")
    parser.add_argument("--nworker", type=int, default=1, help="processes; changes the numbering")
    parser.add_argument("--check", action="store_true", help="look at --out_dir, write nothing")
    args = parser.parse_args(paths.words_with_home(may_be_empty=stages.MAY_BE_EMPTY))
    if args.nworker < 1:
        parser.error(f"--nworker={args.nworker}: must be a number at least 1")
    files = stages.input_files(args.data)
    folder = paths.location(paths.with_home(args.out_dir))  # the default
    parts = gathering.plan(files, block_size_mb=args.block_size, num_workers=args.nworker)
    named = {
        gathering.part_name(number, args.num_outputs): [name + args.input_suffix for name in names]
        for number, names in parts.items()
    }
    gathering.require_no_other_parts(folder, named)
    jobs = [(str(folder / part), names) for part, names in named.items()]
    if args.check:
        # With the test set, which process_wiki.sh puts there before the parts.
        test_set = [str(folder / name) for name in ("eval.txt", "eval.md5")]
        stages.require_apart(jobs, also_read=files, also_written=test_set)
        return
    paths.make_folder(folder)
    run = gathering.write_part
    stages.run(run, jobs, num_workers=args.nworker, description="gather", also_read=files)


if __name__ == "__main__":
    sys.exit(main())
