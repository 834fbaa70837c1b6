"""How the workers of a data set and of a clean-up stage start."""

import multiprocessing
import os
from collections.abc import Iterable
from multiprocessing.context import BaseContext

from mlperf_bert.files import paths


def context(files: Iterable[str | os.PathLike]) -> BaseContext:
    """Forks of this process, unless some of the files are in a bucket.

    TensorFlow's client, and the thread that keeps a bucket's lock, hold locks of C++ that a fork
    would copy as they are, and then wait for without end. So workers for a bucket are forks of a
    process that imports TensorFlow, once, and does nothing else.
    """
    if paths.are_local(files):
        return multiprocessing.get_context("fork")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["tensorflow", "mlperf_bert.data.dataset"])
    return server
