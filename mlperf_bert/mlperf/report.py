"""Moved to mlperf_bert.submission.report."""

import sys

if __name__ == "__main__":
    sys.exit("this command has moved: python -m mlperf_bert.submission.report")
