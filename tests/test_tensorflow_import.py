import os
import re
import sys

import pytest

from mlperf_bert import tensorflow_import
from tests.helpers import programs


def test_lines_that_match_are_left_out_whoever_writes_them(capfd):
    with tensorflow_import.lines_left_out(re.compile(rb"^I\d{4} ")):
        os.write(2, b"I0000 a library speaks of itself\nE0000 a failure\nnot I0000 at the start")
    os.write(2, b"\nI0000 afterwards\n")
    kept = "E0000 a failure\nnot I0000 at the start\nI0000 afterwards\n"
    assert capfd.readouterr().err == kept


def test_lines_before_an_error_are_kept(capfd):
    with pytest.raises(OSError), tensorflow_import.lines_left_out(re.compile(b"noise")):
        os.write(2, b"noise\nthe reason\n")
        raise OSError
    assert capfd.readouterr().err == "the reason\n"


PROGRAM = "from mlperf_bert.tensorflow_import import tensorflow; tensorflow()"


@pytest.mark.all
def test_tensorflow_speaks_where_it_is_asked_to():
    """tests/test_cli.py shows that it is silent where nothing is asked."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = programs.run(sys.executable, "-c", PROGRAM, env=environment, check=True)
    assert "absl::InitializeLog" in done.stderr


@pytest.mark.all
def test_threads_wait_for_the_one_that_imports():
    program = (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from mlperf_bert.tensorflow_import import tensorflow\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    list(pool.map(lambda _: tensorflow().train, 'abcd'))"
    )
    done = programs.run(sys.executable, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_processor_that_tensorflow_cannot_use_is_named(tmp_path, monkeypatch):
    about = tmp_path / "cpuinfo"
    about.write_text("flags\t\t: fpu sse sse4_2\n")
    monkeypatch.setattr(tensorflow_import, "_ABOUT", about)
    monkeypatch.setattr(tensorflow_import.platform, "machine", lambda: "x86_64")
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(ImportError, match="needs a processor with AVX"):
        tensorflow_import.tensorflow()


@pytest.mark.parametrize("own", [None, "FASTEST_FIRST"])
def test_gpus_are_counted_as_nvml_counts_them_if_nothing_else_is_asked_for(monkeypatch, own):
    monkeypatch.setattr(os, "environ", {"CUDA_DEVICE_ORDER": own} if own else {})
    monkeypatch.setattr(tensorflow_import.importlib, "import_module", lambda name: None)
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    tensorflow_import.tensorflow()
    assert os.environ["CUDA_DEVICE_ORDER"] == (own or "PCI_BUS_ID")
