"""Data sets made by Apache Beam equal those of the process pool. CPU, half a minute.

Oracle: the process pool, which test_dataset.py covers.
"""

import os

import pytest

from tests.data.making import fails, parts_of, run, visible

pytestmark = pytest.mark.all

DIRECT = "--runner=DirectRunner"


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in visible(folder)}


@pytest.mark.parametrize("options", [DIRECT, f"{DIRECT} --direct_num_workers=2"])
def test_the_direct_runner_makes_the_same_bytes(work, options):
    assert run(work, output_dir=work / "pool").returncode == 0
    done = run(work, beam_options=options)
    assert done.returncode == 0, done.stderr
    assert "3 parts made" in done.stdout
    assert contents(work / "out") == contents(work / "pool")
    (work / "out" / "part-1").unlink()
    assert "1 parts made" in run(work, beam_options=options).stdout
    assert contents(work / "out") == contents(work / "pool")


@pytest.mark.parametrize("name", ["part-1", "vocab.txt"])
@pytest.mark.parametrize("flags", [{"beam_options": DIRECT}, {}], ids=["beam", "pool"])
def test_a_fifo_is_refused_and_not_waited_for(work, flags, name):
    (work / name).unlink()
    os.mkfifo(work / name)
    assert f"{work}/{name}: is not a regular file; give one" in fails(run(work, **flags))


def test_a_failed_part_is_one_line_and_the_others_are_kept(work):
    (work / "part-1").write_bytes(b"good\n\xff\n")
    message = fails(run(work, beam_options=DIRECT))
    assert "1 of 3 parts failed" in message and f"{work}/part-1: byte 5 is not UTF-8" in message
    assert set(parts_of(work)) == {"part-0", "part-2"}
    assert visible(work / "out") == {"part-0", "part-2", "provenance.json"}
