"""Data sets made by Apache Beam equal those of the process pool. CPU, half a minute.

Oracle: the process pool, which test_dataset.py covers.
"""

import pytest

from tests.data.making import fails, parts_of, run, visible

pytestmark = pytest.mark.all

DIRECT = "--runner=DirectRunner"


def contents(folder) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in visible(folder)}


@pytest.mark.parametrize("options", [DIRECT, f"{DIRECT} --direct_num_workers=2"])
def test_the_direct_runner_makes_the_same_bytes(work, options):
    run(work, output_dir=work / "pool", check=True)
    done = run(work, beam_options=options, check=True)
    assert "3 parts made" in done.stdout
    assert contents(work / "out") == contents(work / "pool")
    (work / "out" / "part-1").unlink()
    assert "1 parts made" in run(work, beam_options=options).stdout
    assert contents(work / "out") == contents(work / "pool")


def test_a_failed_part_is_one_line_and_the_others_are_kept(work):
    (work / "part-1").write_bytes(b"good\n\xff\n")
    message = fails(run(work, beam_options=DIRECT))
    assert "1 of 3 parts failed" in message and f"{work}/part-1: byte 5 is not UTF-8" in message
    assert set(parts_of(work)) == {"part-0", "part-2"}
    assert visible(work / "out") == {"part-0", "part-2", "provenance.json"}
