r"""A whole MLPerf campaign in miniature: ten runs, the submission, the official tools, the report.

    python -m demo.campaign --output_dir=build/campaign

The task is demo/miniature.py's. No official RCPs exist for it; those in
demo/rcps_miniature.json are the samples that twenty runs of it needed. A run departs from the
closed rules (a tiny model, short sequences), says so, and is logged as division open. An
interrupted campaign resumes by the same command. docs/report.png is its report, drawn by

    chromium --headless --hide-scrollbars --force-device-scale-factor=2 --window-size=830,806 \
        --screenshot=docs/report.png build/campaign/report.html
"""

import argparse
import sys
import time
from pathlib import Path

from demo import miniature
from demo.__main__ import REPOSITORY, local_folder
from mlperf_bert.messages import ends_in_one_line
from mlperf_bert.options import expanded_arguments
from mlperf_bert.submission import campaign, report

REFERENCE_POINTS = REPOSITORY / "demo" / "rcps_miniature.json"
ORG, SYSTEM = "demo", "this-machine"
NOTE = "a miniature: tiny model and text, no submission; see demo/campaign.py"


@ends_in_one_line("demo.campaign")
def main() -> int:
    """Prepares, runs, judges, reports; returns what the campaign returns."""
    parser = argparse.ArgumentParser(prog="python -m demo.campaign")
    parser.add_argument("--output_dir", type=local_folder, default=Path("build/campaign"))
    arguments = parser.parse_args(expanded_arguments())
    folder, start = arguments.output_dir.resolve(), time.monotonic()
    notes = folder / "notes.json"
    miniature.prepare(folder / "task")
    notes.write_text(f'{{"sw_notes": "{NOTE}"}}\n', encoding="utf-8")
    status = campaign.main(
        [
            f"--org={ORG}",
            f"--system={SYSTEM}",
            f"--output_dir={folder / 'campaign'}",
            f"--custom_rcps={REFERENCE_POINTS}",
            f"--system_description={notes}",
            "--",
            *miniature.run_flags(folder / "task"),
        ]
    )
    if status > 1:  # the campaign was interrupted: there is nothing to report yet
        return status
    org_dir = folder / "campaign" / "submission" / ORG
    if org_dir.exists():
        output = folder / "report.html"
        report.main([str(org_dir), f"--custom_rcps={REFERENCE_POINTS}", f"--output={output}"])
        print(f"\nDone after {time.monotonic() - start:.0f} s. Look at {output}")
    return status


if __name__ == "__main__":
    sys.exit(main())
