"""The commands that convert a checkpoint: their last line, and their refusal. CPU, 15 s."""

import sys

import pytest

from tests.helpers import starts

FILES = ("--bert_config_file={config_file}", "--vocab_file={vocabulary}")


@pytest.mark.parametrize(
    ("script", "flags", "done"),
    [
        ("checkpoint_add_gradacc.py", ["--old={old}", "--new={new}"], "139 accumulators added"),
        (
            "mlperf_bert/convert/to_hugging_face.py",
            ["--checkpoint={old}", *FILES, "--output_dir={new}"],
            "46 weights exported",
        ),
        pytest.param(
            "tf2_encoder_checkpoint_converter.py",
            [FILES[0], "--checkpoint_to_convert={old}", "--converted_checkpoint_path={new}"],
            "46 weights converted from TF1 to TF2 (pretrainer)",
            marks=pytest.mark.gate,
        ),
    ],
)
def test_it_says_what_it_has_done_or_refuses(generated, vocabulary, tmp_path, script, flags, done):
    def run(old) -> tuple[int, str, str]:
        places = {"old": old, "new": tmp_path / "out" / "new", "vocabulary": vocabulary}
        given = [flag.format(config_file=generated.config_file, **places) for flag in flags]
        ended = starts.run([sys.executable, script, *given])
        return ended.returncode, ended.stdout, ended.stderr

    code, output, errors = run(tmp_path / "none")
    assert (code, output, errors.count("\n")) == (1, "", 1) and not list(tmp_path.iterdir())
    name = script.rpartition("/")[2]
    assert errors.startswith(f"{name}: {tmp_path}/none: no such checkpoint")
    assert run(generated.checkpoint) == (0, f"{done}: {tmp_path}/out/new\n", "")
