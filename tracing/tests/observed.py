"""Takes a trace that adds a byte to the file $SAMPLES after each of its samples.

So a command that is traced knows how often it was looked at, however busy the machine is.
"""

# ruff: noqa: E402

import os
import sys

sys.path[0] = sys.argv.pop(1)  # as trace.sh has it

from tracing import signals_blocked
from tracing.__main__ import main

with signals_blocked():
    from tracing.sampling import Sampler

sample = Sampler._sample


def sample_and_tell(sampler: Sampler) -> None:
    sample(sampler)
    with open(os.environ["SAMPLES"], "ab") as file:  # noqa: PTH123 - as few imports as there are
        file.write(b".")


Sampler._sample = sample_and_tell
main()
