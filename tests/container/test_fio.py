"""Debian's fio in an image of its own replays a trace: for machines that lack it."""

import json

import pytest

from tests.container.conftest import run
from tests.tracing import generated_trace
from tests.tracing.test_export_fio import moved_by, moved_by_the_trace
from tracing.exports import fio
from tracing.exports.finished import Finished

pytestmark = pytest.mark.container

IMAGE = "bert-test-fio"
DOCKERFILE = """
FROM bert-test-base
RUN apt-get -qq update && apt-get -qq install --yes --no-install-recommends fio
"""


def test_a_replay_in_a_container_moves_the_bytes_of_the_trace(docker, base_image, tmp_path):
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text(DOCKERFILE)
    run("docker", "build", "--quiet", "--network=host", "--tag", IMAGE, tmp_path / "image",
        env=docker)  # fmt: skip
    trace = generated_trace.write(tmp_path / "trace")
    fio.write(Finished(trace), tmp_path / "replay", per="thread")
    words = ["docker", "run", "--rm", "--network=none", "--workdir=/replay"]
    words += [f"--volume={tmp_path / 'replay'}:/replay", IMAGE, "fio", "replay.fio"]
    try:
        done = run(*words, "--output-format=json", env=docker)
    finally:
        run("docker", "image", "rm", "--force", IMAGE, env=docker, check=False)
    assert moved_by(json.loads(done.stdout)["jobs"]) == moved_by_the_trace(trace)
