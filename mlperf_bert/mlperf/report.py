"""Moved to mlperf_bert.submission.report."""

if __name__ == "__main__":
    raise SystemExit("this command has moved: python -m mlperf_bert.submission.report")
