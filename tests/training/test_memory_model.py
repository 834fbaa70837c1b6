"""The model of memory agrees with measurements, and the checks say what fits."""

import dataclasses
import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from benchmarks import memory as measuring
from mlperf_bert.checkpoints import names
from mlperf_bert.mlperf.rules import BERT_LARGE
from mlperf_bert.model.config import BertConfig
from mlperf_bert.portable import compile_step
from mlperf_bert.training import checks, memory
from mlperf_bert.training.checks import Findings
from mlperf_bert.training.config import DeviceConfig
from tests.training.configurations import large_model

RECORDED = json.loads(Path(measuring.ROOT / "benchmarks" / "memory.json").read_text())
COMPILED = json.loads(Path(measuring.ROOT / "benchmarks" / "compiled.json").read_text())
MEASURED = [
    json.loads(line)
    for line in (measuring.ROOT / "benchmarks" / "accelerator.jsonl").read_text().splitlines()
]
LARGE = memory.Step(
    model=BertConfig(**BERT_LARGE),
    num_rows=8,
    sequence_length=512,
    predictions_per_row=76,
    precision="float32",
    fused=False,
    recompute="none",
    steps_per_update=1,
)


@pytest.mark.parametrize(
    "found",
    RECORDED,
    ids=lambda f: f"{f['precision']}-{f['jit_compile']}-{f['batch_size']}-{f['recompute']}",
)
def test_the_estimate_is_within_its_tolerance_of_what_was_measured(found):
    fields = {field.name: found[field.name] for field in dataclasses.fields(measuring.Case)}
    estimate = measuring.estimated_bytes(measuring.Case(**fields))
    assert estimate == pytest.approx(found["peak_bytes"], rel=memory.TOLERANCE)


@pytest.mark.parametrize(
    "precision, fused, num_rows, gib",
    [
        ("float32", False, 2, 11.1),
        ("float32", False, 4, 15.8),
        ("bfloat16", True, 2, 7.8),
        ("bfloat16", True, 4, 9.4),
        ("bfloat16", True, 8, 13.0),
    ],
)
def test_the_estimate_is_within_its_tolerance_of_the_table_in_the_documents(
    precision, fused, num_rows, gib
):
    """docs/training.md; measured by whole runs."""
    step = dataclasses.replace(LARGE, precision=precision, fused=fused, num_rows=num_rows)
    assert step.total_bytes() == pytest.approx(gib * 2**30, rel=memory.TOLERANCE)


def of_compiler(num_rows, recompute, steps_per_update, device):
    """The estimate of a step as the compilers see it: without libraries."""
    step = dataclasses.replace(
        LARGE,
        num_rows=num_rows,
        precision="bfloat16",
        fused=True,
        recompute=recompute,
        steps_per_update=steps_per_update,
        device=device,
    )
    return step.total_bytes() - memory.LIBRARY_BYTES[device]


@pytest.mark.parametrize(
    "found",
    [found for found in COMPILED if found["kind"] == "training"],
    ids=lambda f: f"{f['device']}-{f['num_devices']}-{f['num_examples']}-{f['recompute']}",
)
def test_the_estimate_is_within_its_tolerance_of_what_compilers_say(found):
    """Of a step with room to spare, which its compiler may use, it is only not above."""
    num_rows = found["num_examples"] // found["num_devices"]
    device = "TPU" if found["device"].startswith("tpu") else "GPU"
    estimate = of_compiler(num_rows, found["recompute"], found["steps_per_update"], device)
    peak = found["peak_bytes"]
    assert estimate < (1 + memory.TOLERANCE) * peak
    is_full = peak > 0.75 * found["usable_bytes"]
    if is_full or found["recompute"] == "blocks":
        assert estimate == pytest.approx(peak, rel=memory.TOLERANCE)
    else:
        assert peak < 1.4 * estimate


@pytest.mark.parametrize(
    "name, num_rows",
    [("ours large_112_packed", 56), ("ours large_56_packed", 28), ("ours large_56", 56)],
)
def test_the_estimate_is_within_its_tolerance_of_what_an_h100_took(name, num_rows):
    """Under jax, which adds nothing to the program's memory."""
    [found] = [row for row in MEASURED if row["name"] == name]
    estimate = of_compiler(num_rows, "none", 1, "GPU")
    assert estimate == pytest.approx(found["peak_memory_bytes"], rel=memory.TOLERANCE)


@pytest.mark.parametrize("recompute, gib", [("none", 31.73), ("none", 28.76), ("attention", 14.8)])
def test_the_estimate_is_within_its_tolerance_of_64_examples_on_tpus(recompute, gib):
    """What does not fit into a TPU v3, what fits into a v4, and what fills a v3."""
    estimate = of_compiler(64, recompute, 1, "TPU")
    assert estimate == pytest.approx(gib * 2**30, rel=memory.TOLERANCE)


def test_the_table_of_what_fits_has_the_estimates():
    """The last column of the second table of docs/training.md, "Does it fit?"."""
    cases = [  # rows a replica, precision, steps per update
        (56, "bfloat16", 1),
        (28, "bfloat16", 2),
        (14, "float32", 4),
        (56, "bfloat16", 8),
        (14, "bfloat16", 32),
        (14, "bfloat16", 8),
        (3, "float32", 1),
        (3, "float32", 8),
    ]
    text = (measuring.ROOT / "docs" / "training.md").read_text()
    table = text.partition("| GPUs | start with | GiB a GPU |")[2].partition("\n\n")[0]
    shown = [int(line.split("|")[-2]) for line in table.strip().splitlines()[1:]]
    estimates = [
        dataclasses.replace(
            LARGE,
            num_rows=num_rows,
            precision=precision,
            fused=precision == "bfloat16",
            steps_per_update=steps_per_update,
            device="GPU",
        ).total_bytes()
        for num_rows, precision, steps_per_update in cases
    ]
    assert shown == [round(estimate / 2**30) for estimate in estimates]


def test_the_sentences_of_what_a_gpu_needs_have_the_estimates():
    def shown(num_rows, steps_per_update, **lengths):
        of_gpu = {"precision": "bfloat16", "fused": True, "device": "GPU", **lengths}
        step = dataclasses.replace(
            LARGE, num_rows=num_rows, steps_per_update=steps_per_update, **of_gpu
        )
        return round(step.total_bytes() / 2**30)

    def page(name):
        return " ".join((measuring.ROOT / name).read_text().split())

    one = shown(56, 8)
    phases = shown(128, 8, sequence_length=128, predictions_per_row=20), shown(32, 16)
    assert f"This takes {one} GiB of the GPU by estimate." in page("docs/faq.md")
    assert f"need {phases[0]} and {phases[1]} GiB by the estimate" in page("docs/training.md")
    assert f"; {shown(56, 1)} GiB of each [by estimate]" in page("README.md")
    assert f"`batch_448` takes {shown(56, 1)} GiB of it by estimate" in page("docs/faq.md")


def test_a_batch_of_8_needs_less_with_recomputed_blocks_than_one_of_2_without():
    """By what was measured; by the estimate the update is the largest moment of both."""
    peaks = {(f["precision"], f["batch_size"], f["recompute"]): f["peak_bytes"] for f in RECORDED}
    assert peaks["bfloat16", 8, "blocks"] < peaks["bfloat16", 2, "none"]
    estimates = [
        dataclasses.replace(
            LARGE, precision="bfloat16", fused=True, num_rows=num_rows, recompute=recompute
        ).total_bytes()
        for num_rows, recompute in ((8, "blocks"), (2, "none"))
    ]
    assert estimates[0] <= estimates[1]


def test_every_option_has_its_effect():
    default = LARGE.total_bytes()

    def changed(**options):
        return dataclasses.replace(LARGE, **options).total_bytes()

    fused, attention, blocks = (
        changed(fused=True, recompute=recompute) for recompute in ("none", "attention", "blocks")
    )
    assert default > fused > attention > blocks
    assert changed(fused=True, precision="bfloat16") < fused
    weights = 4 * names.num_weights(LARGE.model)
    assert changed(steps_per_update=2) - default == weights
    assert changed(copies_state=True) - default == 3 * weights
    assert changed(num_rows=9) > default and changed(predictions_per_row=80) > default


@pytest.mark.parametrize(
    "available_gb, expected",
    [
        (30, memory.Change("none", 1)),
        (20, memory.Change("none", 1)),
        (15, memory.Change("attention", 1)),
        (9, memory.Change("blocks", 1)),
        (5, None),
    ],
)
def test_the_smallest_change_that_fits(available_gb, expected):
    step = dataclasses.replace(LARGE, fused=True)
    assert memory.smallest_change(step, available_bytes=available_gb * 10**9) == expected


def test_a_batch_is_divided_where_recomputation_is_not_enough():
    step = dataclasses.replace(LARGE, fused=True, num_rows=64)
    change = memory.smallest_change(step, available_bytes=13 * 10**9)
    assert change == memory.Change("blocks", 2)


def on_gpu(config, **changed):
    """A run on a GPU that is not there: the checks see the strategy of the CPU."""
    large = large_model(
        config, train_batch_size=8, shape=dataclasses.replace(config.shape, max_seq_length=512)
    )
    large = dataclasses.replace(large, jit_compile="auto", **changed)
    setup = checks.inspect(dataclasses.replace(large, init_checkpoint=None))
    on_it = dataclasses.replace(large, device=DeviceConfig(num_gpus=1))
    return dataclasses.replace(setup, config=on_it, findings=Findings())


def findings_of(setup):
    shortfall = memory.shortfall(setup)
    return [str(shortfall)] if shortfall else []


@pytest.mark.parametrize(
    "gigabytes, recompute, expected",
    [
        (15.9, "none", r"warning: a step does not fit into the 15\.9 GB of this GPU: about "
         r"20\.\d GB; --recompute=attention does"),
        (15.9, "blocks", None),
        (10.5, "none", r"warning: a step does not fit into the 10\.5 GB .*"),
        (9.5, "none", r"error: a step does not fit into the 9\.5 GB .*"),
        (2, "none", ".*no change of --recompute and --train_batch_size makes it fit"),
        (None, "none", None),
    ],
)  # fmt: skip
def test_a_step_that_does_not_fit_into_a_gpu_is_told_with_what_does(
    config, monkeypatch, gigabytes, recompute, expected
):
    available_bytes = gigabytes and int(gigabytes * 10**9)
    monkeypatch.setattr(memory, "gpu_bytes", lambda num_gpus: available_bytes)
    found = findings_of(on_gpu(config, recompute=recompute))
    assert [bool(re.fullmatch(expected or "", line)) for line in found] == [True] * bool(expected)


@pytest.mark.parametrize(
    ("sizes", "num_gpus", "expected"),
    [
        ([80, 40], 2, 40),
        ([80, 40], 1, None),  # the run may use the larger one
        ([80, 80], 1, 80),
        ([40], 2, 40),  # a missing GPU is another check's
        ([], 1, None),
    ],
)
def test_memory_is_that_of_gpus_which_the_run_uses(monkeypatch, sizes, num_gpus, expected):
    """NVML ignores CUDA_VISIBLE_DEVICES."""
    for name, answer in (
        ("Init", lambda: None),
        ("DeviceGetCount", lambda: len(sizes)),
        ("DeviceGetHandleByIndex", lambda index: index),
        ("DeviceGetMemoryInfo", lambda index: types.SimpleNamespace(total=sizes[index])),
    ):
        monkeypatch.setattr(memory.pynvml, f"nvml{name}", answer)
    assert memory.gpu_bytes(num_gpus) == expected


def test_a_smaller_batch_keeps_the_global_batch_size(config, monkeypatch):
    monkeypatch.setattr(memory, "gpu_bytes", lambda num_gpus: 13_000_000_000)
    [line] = findings_of(on_gpu(config, train_batch_size=64, steps_per_update=1))
    assert line.endswith(
        "; --recompute=blocks --train_batch_size=32 --steps_per_update=2 does if the flags that "
        "count steps are multiplied too (docs/training.md)"
    )


def test_on_a_cpu_it_is_a_warning_at_the_start_of_a_run(config, monkeypatch):
    monkeypatch.setattr(memory, "memory_bytes", lambda: 5 * 10**9)
    findings = checks.inspect(large_model(config)).findings
    findings.require_none()
    [line] = [str(finding) for finding in findings if "a step does not fit" in finding.text]
    assert line.startswith("warning: a step does not fit into the 5.0 GB available here: about ")


def test_a_measurement_is_kept_in_a_new_folder_and_not_repeated(tmp_path, monkeypatch):
    words = ["--batch_sizes=1", "--precisions=bfloat16", "--recompute=none", "--num_gpus=1"]
    monkeypatch.setattr("sys.argv", ["memory", f"--output={tmp_path}/new/memory", *words])
    asked, answer = [], {"peak_bytes": 2**30, "seconds": 1.0}
    monkeypatch.setattr(measuring, "in_a_process", lambda *given: asked.append(given) or answer)
    measuring.main()
    measuring.main()
    [kept] = json.loads((tmp_path / "new" / "memory.json").read_text())
    assert len(asked) == 1 and answer.items() <= kept.items()


@pytest.mark.soak
def test_the_estimate_of_a_step_that_is_measured_now(tmp_path):
    command = [sys.executable, "-m", "benchmarks.memory", "--precisions=bfloat16", "--steps=0"]
    options = ["--batch_sizes=1", "--recompute=blocks", f"--output={tmp_path}/memory"]
    subprocess.run([*command, *options], cwd=measuring.ROOT, check=True)
    [found] = json.loads((tmp_path / "memory.json").read_text())
    case = measuring.Case(
        precision="bfloat16", jit_compile="auto", batch_size=1, recompute="blocks"
    )
    estimate = measuring.estimated_bytes(case)
    assert found["peak_bytes"] == pytest.approx(estimate, rel=memory.TOLERANCE)
    assert (tmp_path / "memory.png").stat().st_size > 1000


def on_tpu(config, tpu_type, recompute):
    """A run on a TPU that is not there, 8 examples on one core, in bfloat16."""
    setup = on_gpu(config, recompute=recompute, precision="bfloat16", tpu_type=tpu_type)
    on_it = dataclasses.replace(setup.config, device=DeviceConfig(use_tpu=True))
    return dataclasses.replace(setup, config=on_it)


def test_the_host_of_a_tpu_says_what_a_core_has(config, monkeypatch):
    monkeypatch.setitem(memory.TPU_BYTES, "v3", 7 * 2**30)
    [line] = findings_of(on_tpu(config, "v3-8", "none"))
    assert re.match(r"warning: a step does not fit into the 7\.5 GB of a device of this v3-8", line)
    assert findings_of(on_tpu(config, "v5p-8", "none")) == []
    assert findings_of(on_tpu(config, "", "none")) == []  # nobody says it


def test_the_memory_of_tpus_is_that_of_compile_step():
    """Which needs nothing of the package, and so has its own table."""
    names = {"v5litepod": "v5e"}
    of_compilers = {
        generation: compile_step.DEVICES[f"tpu-{names.get(generation, generation)}"].memory_bytes
        for generation in memory.TPU_BYTES
    }
    assert of_compilers == memory.TPU_BYTES
