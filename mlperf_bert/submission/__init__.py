"""From runs to a submission: campaigns, the official tools, verdicts, reports."""

import sys

_INSTEAD = {
    "mlperf_bert.submission.compare": "mlperf_results.compare",
    "mlperf_bert.submission.deciding": "mlperf_results.compare, .expect or .watch",
    "mlperf_bert.submission.expect": "mlperf_results.expect",
    "mlperf_bert.submission.published": "mlperf_results.make_published",
    "mlperf_bert.submission.standing": "mlperf_results.standing",
    "mlperf_bert.submission.watch": "mlperf_results.watch",
    "--alternate": "mlperf_results.alternate --variants A B",
    "--standing": "mlperf_results.standing --output=PAGE.html",
}
"""What pages named before mlperf_results was a product, and what to use after python -m."""

if sys.argv[:1] == ["-m"]:  # so it is while Python looks for the module of this package to run
    for _word in sys.orig_argv:
        if _name := _INSTEAD.get(_word.partition("=")[0]):
            sys.exit(f"{_word}: has left; use python -m {_name}")
