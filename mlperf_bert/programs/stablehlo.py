"""What TensorFlow exports, as StableHLO alone, serialized for the oldest version that can hold it.

This needs jax: TensorFlow registers no pass that writes an older version.
"""

import itertools
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

_DIALECTS = {"builtin", "func", "stablehlo"}
_NEWEST_MINOR_OF_0 = 20  # 1.0.0 followed


def require_jax() -> None:
    """Raises ValueError, in one line, if jax is not installed."""
    if find_spec("jax") is None:
        raise ValueError("the export needs jax, which writes the StableHLO: pip install jax")


def portable(exported: bytes) -> tuple[bytes, str, dict[int, int], list[str]]:
    """Takes what TensorFlow's compiler returns for the stage `stablehlo_serialized`.

    Returns: StableHLO's portable form; the oldest version of StableHLO that has all its operations,
    later ones read it too; for each output that replaces an input, variables that change, the index
    of both; and the names of what it calls that is not StableHLO's own.

    Raises:
      ValueError: it has operations of another dialect than StableHLO, which are named.
    """
    from jax.interpreters import mlir
    from jaxlib.mlir.dialects import stablehlo

    from mlperf_bert.programs.jax_step import operations

    with mlir.make_ir_context() as context:
        module = stablehlo.deserialize_portable_artifact(context, exported)
        # TensorFlow copies every variable that it returns. Of jax's compilers only the CPU's knows
        # mhlo.copy; its value is that of its operand.
        for copy in [op for op in operations(module) if op.name == "mhlo.copy"]:
            copy.result.replace_all_uses_with(copy.operands[0])
            copy.erase()
        attributes = module.operation.attributes
        replaced = _replaced_inputs(attributes)
        for name in [name for name in attributes if name.startswith("mhlo.")]:
            del attributes[name]
        every = operations(module)
        names = {op.name for op in every}
        custom = [op for op in every if op.name == "stablehlo.custom_call"]
        calls = {op.attributes["call_target_name"].value for op in custom}
        if foreign := sorted(n for n in names if n.split(".")[0] not in _DIALECTS):
            raise ValueError(
                f"the program has operations that are not StableHLO: {', '.join(foreign)}; "
                "export it with the TensorFlow and jax of environment/requirements-dev.lock"
            )
        for version in _versions(stablehlo.get_minimum_version(), stablehlo.get_current_version()):
            try:
                content = stablehlo.serialize_portable_artifact(module, version)
            except ValueError:  # an operation is younger
                continue
            return content, version, replaced, sorted(calls)
    raise AssertionError("the newest version holds every program")


def _replaced_inputs(attributes: Any) -> dict[int, int]:
    """By the alias that TensorFlow's compiler gives to every variable that changes.

    One is `{alias = {..., parameter_number = 8 : i64}, output_index = array<i64: 1>}`.
    """
    name = "mhlo.input_output_alias"
    text = str(attributes[name]) if name in attributes else ""
    pattern = r"parameter_number = (\d+) : i64}, output_index = array<i64(?:: (\d+))?>"
    return {int(output or 0): int(parameter) for parameter, output in re.findall(pattern, text)}


def _versions(oldest: str, newest: str) -> Iterator[str]:
    """Every version that an operation may need, the oldest first."""
    first, last = (tuple(map(int, each.split("."))) for each in (oldest, newest))
    for major, minor in itertools.product((0, 1), range(max(_NEWEST_MINOR_OF_0, last[1]) + 1)):
        if first <= (major, minor, 0) <= last and (major or minor <= _NEWEST_MINOR_OF_0):
            yield f"{major}.{minor}.0"
