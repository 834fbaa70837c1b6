"""One directory, one run, one process."""

import pytest

from mlperf_bert.training.output import OutputDirectory

PARAMETERS = {"learning_rate": 0.1}


def test_two_processes_cannot_train_into_one_directory(tmp_path):
    first, second = (OutputDirectory(str(tmp_path), PARAMETERS) for _ in range(2))
    first.record(status="running", seed=1)
    resuming = OutputDirectory(str(tmp_path), PARAMETERS)
    assert resuming.resumes and resuming.recorded_seed == 1
    for other in (second, resuming):
        with pytest.raises(ValueError, match="another process trains into it; wait for it, or"):
            other.record(status="running", seed=2)
    assert resuming.recorded_seed == 1
    first.record(status="running", seed=1)  # its own again
    del first  # as the end of its process does
    resuming.record(status="running", seed=1)
    resuming.record(status="success", seed=1)
    with pytest.raises(ValueError, match="holds a finished run"):
        OutputDirectory(str(tmp_path), PARAMETERS)
