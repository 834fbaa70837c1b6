"""A step as Chakra's nodes: kernels of a compiled program, the all-reduce between its halves."""

import json
import math
import re
from pathlib import Path

import jax
import pytest

from exchange import chakra
from mlperf_bert.portable import compile_step, run_step, trace
from tests.portable.programs_by_hand import export
from tests.training import generated_task

# A fused product with an addition, a loop that runs three times, a sum, a copy, two outputs.
TEXT = """HloModule jit_step, is_scheduled=true

%product (p0: f32[4,8], p1: f32[8,2]) -> (f32[4,2], f32[4,2]) {
  %p0 = f32[4,8]{1,0} parameter(0)
  %p1 = f32[8,2]{1,0} parameter(1)
  %dot = f32[4,2]{1,0} dot(%p0, %p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %more = f32[4,2]{1,0} add(%dot, %dot)
  ROOT %both = (f32[4,2]{1,0}, f32[4,2]{1,0}) tuple(%dot, %more)
}

%body (b: (f32[4,2])) -> (f32[4,2]) {
  %b = (f32[4,2]{1,0}) parameter(0)
  %one = f32[4,2]{1,0} get-tuple-element(%b), index=0
  %twice = f32[4,2]{1,0} multiply(%one, %one)
  ROOT %again = (f32[4,2]{1,0}) tuple(%twice)
}

%run (r: (f32[4,2])) -> pred[] {
  %r = (f32[4,2]{1,0}) parameter(0)
  ROOT %true = pred[] constant(true)
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %c = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %c)
}

ENTRY %main (x: f32[4,8], w: f32[8,2]) -> (f32[2], f32[4,2]) {
  %x = f32[4,8]{1,0} parameter(0)
  %w = f32[8,2]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %fused = (f32[4,2]{1,0}, f32[4,2]{1,0}) fusion(%x, %w), kind=kOutput, calls=%product
  %first = f32[4,2]{1,0} get-tuple-element(%fused), index=0
  %start = (f32[4,2]{1,0}) tuple(%first)
  %loop = (f32[4,2]{1,0}) while(%start), condition=%run, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %last = f32[4,2]{1,0} get-tuple-element(%loop), index=0
  %total = f32[2]{0} reduce(%last, %zero), dimensions={0}, to_apply=%add
  %call = f32[4,2]{1,0} custom-call(%x, %w), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  %copied = f32[4,2]{1,0} copy(%call)
  ROOT %result = (f32[2]{0}, f32[4,2]{1,0}) tuple(%total, %copied)
}
"""  # noqa: E501


def test_the_kernels_of_a_program_their_operations_and_sources():
    found, outputs = trace.kernels(TEXT)
    product = 2 * 4 * 2 * 8
    assert {k.name: (k.num_ops, k.num_bytes, set(k.sources)) for k in found} == {
        "fused": (product + 8, 4 * (32 + 16 + 16), {0, 1}),
        "loop": (3 * 8, 4 * (8 + 8), {"fused"}),
        "total": (8, 4 * (8 + 1 + 2), {"loop"}),
        "call": (product, 4 * (32 + 16 + 8), {0, 1}),
        "copied": (0, 4 * (8 + 8), {"call"}),
    }
    assert outputs == [{"total"}, {"copied"}]


@pytest.fixture(scope="module")
def step(tmp_path_factory) -> Path:
    """The folder of a step of one layer; only to be read."""
    folder = tmp_path_factory.mktemp("traced")
    generated_task.write_task(folder / "task", dropout=0.1, num_hidden_layers=1)
    given = ["--train_batch_size=8", "--optimizer=lamb", "--num_recorded_steps=0"]
    export(folder / "task", folder / "step", *given, "--normalization=global")
    return folder / "step"


def of_kind(nodes: list, kind: str) -> list:
    return [node for node in nodes if node.type == chakra.value_of("NodeType", f"{kind}_NODE")]


def reached(nodes: list, start: int) -> set[int]:
    """What depends on a node, through others too."""
    found = {start}
    for node in nodes:  # dependencies stand above
        if found & {*node.data_deps, *node.ctrl_deps}:
            found.add(node.id)
    return found


@pytest.mark.gate
def test_a_steps_nodes_have_its_products_its_gradients_and_their_order(step, tmp_path, capsys):
    """The FLOP are those of the StableHLO, counted by another reader of another form."""
    trace.main([str(step), "--to=chakra", "--ranks=4", f"--output={tmp_path / 'four'}"])
    assert re.search(r"four: \d+ nodes for each of 4 ranks\n$", capsys.readouterr().out)
    files = sorted((tmp_path / "four").iterdir())
    assert [path.name for path in files] == [f"step.{rank}.et" for rank in range(4)]
    metadata, nodes = chakra.read(files[3])
    nodes = list(nodes)
    assert not list(chakra.violations(nodes))
    about = chakra.attributes_of(metadata)
    entries = json.loads((step / "signature.json").read_text())
    [gradients] = [e for e in entries["programs"] if e["kind"] == run_step.GRADIENTS]
    num_bytes = sum(
        4 * math.prod(v["shape"]) for v in gradients["outputs"] if v["role"] == "gradient"
    )
    counts, reduced = of_kind(nodes, "COMM_COLL")
    assert chakra.attributes_of(counts)["comm_size"] == 8  # two numbers of float32
    assert chakra.attributes_of(reduced) == {
        "is_cpu_op": False, "comm_type": 0, "comm_size": num_bytes, "comm_priority": 0, "ranks": 4
    }  # fmt: skip
    assert about["gradient_bytes"] == num_bytes and about["rank"] == 3
    assert about["formula_flop"] == gradients["flop"]
    ids = {node.name: node.id for node in nodes}
    after = reached(nodes, reduced.id)
    assert not [name for name, n in ids.items() if name.startswith("gradients/") and n in after]
    [update] = [e for e in entries["programs"] if e["kind"] == run_step.UPDATE]
    _, made_by = trace.kernels(trace.compiled(step, update, "cpu"))
    changed = [s for v, s in zip(update["outputs"], made_by) if v["role"] in ("weight", "slot")]
    assert changed and all({ids[f"update/{name}"] for name in s} & after for s in changed)
    text = trace.compiled(step, gradients, "cpu")
    assert _flop_of_dots(text) == compile_step.product_flop((step / gradients["file"]).read_bytes())
    products = sum(chakra.attributes_of(n)["num_ops"] for n in of_kind(nodes, "COMP")
                   if chakra.attributes_of(n)["kind"] == compile_step.PRODUCTS)  # fmt: skip
    assert products >= _flop_of_dots(text)


def _flop_of_dots(text: str) -> int:
    _, computations = compile_step.computations_of(text)
    return sum(
        trace._num_ops(each, name, computations)
        for name, found in computations.items()
        for each in found
        if each["opcode"] == "dot"
    )


@pytest.mark.gate
def test_buckets_are_reduced_as_soon_as_they_are_full_and_one_rank_reduces_nothing(step, tmp_path):
    words = [str(step), "--to=chakra", "--ranks=2", "--bucket_mb=0.01"]
    trace.main([*words, f"--output={tmp_path / 'buckets'}"])
    _, nodes = chakra.read(tmp_path / "buckets/step.0.et")
    nodes = list(nodes)
    assert not list(chakra.violations(nodes))
    _, *reduced = of_kind(nodes, "COMM_COLL")
    sizes = [chakra.attributes_of(node)["comm_size"] for node in reduced]
    assert len(sizes) > 2 and all(size >= 10_000 for size in sizes[:-1])
    needs = [max(node.data_deps) for node in reduced]
    assert needs == sorted(needs) and needs[0] < needs[-1]
    trace.main([str(step), "--to=chakra", f"--output={tmp_path / 'one'}"])
    metadata, nodes = chakra.read(tmp_path / "one/step.0.et")
    assert not of_kind(list(nodes), "COMM_COLL")
    assert sum(sizes) == chakra.attributes_of(metadata)["gradient_bytes"]


@pytest.fixture
def refused(refusal):
    return lambda *words: refusal(trace, *words, "--to=chakra")


@pytest.mark.parametrize(
    "words, reason",
    [
        (["--device=h101"], "--device=h101: not known; choose of cpu, v100, a100-40"),
        (["--device=tpu-v3"], "--device=tpu-v3: not known"),
        (["--ranks=0"], "--ranks and --bucket_mb must be above 0, and finite"),
        (["--bucket_mb=0"], "--ranks and --bucket_mb must be above 0, and finite"),
        (["--bucket_mb=inf"], "--ranks and --bucket_mb must be above 0, and finite"),
        ([], "No such file or directory"),
    ],
)
def test_bad_input_is_one_line(tmp_path, refused, words, reason):
    assert reason in refused(tmp_path / "step", *words)


def test_what_a_compiler_refuses_is_one_line(tmp_path, refused, monkeypatch):
    def refuse(*_, **__):
        raise jax.errors.JaxRuntimeError("INVALID_ARGUMENT: Failed to deserialize\nmore")

    monkeypatch.setattr(trace, "write", refuse)
    assert "step: INVALID_ARGUMENT: Failed to deserialize more" in refused(tmp_path / "step")


def test_a_step_without_halves_or_of_another_version_is_one_line(tmp_path, refused):
    programs = [{"kind": run_step.TRAINING, "num_rows": 1}]
    signature = {"format": run_step.FORMAT, "programs": programs, "recorded": {"training": []}}
    (tmp_path / "signature.json").write_text(json.dumps(signature))
    assert "no programs for several devices: export it with --data_parallel" in refused(tmp_path)
    (tmp_path / "signature.json").write_text(json.dumps(signature | {"format": 1}))
    assert "its format is 1, and this file reads 2" in refused(tmp_path)
    (tmp_path / "signature.json").write_text("{}")
    assert refused(tmp_path).endswith(": not whole; export the step again ('format')")
    (tmp_path / "chakra").mkdir()
    assert "chakra exists: remove it, or name another --output" in refused(tmp_path)
