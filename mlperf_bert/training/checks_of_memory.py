"""Whether a step fits into the memory of its device, before anything is built."""

import pynvml

from mlperf_bert.input import packing
from mlperf_bert.model import pretrainer
from mlperf_bert.model.config import BertConfig
from mlperf_bert.training import compilation, memory
from mlperf_bert.training.config import RunConfig
from mlperf_bert.training.findings import ERROR, WARNING, Finding, Inspection
from mlperf_bert.training.memory import Change, Step

_FAR_OVER = 2


def shortfall(found: Inspection, bert_config: BertConfig, *, host_bytes: int) -> Finding | None:
    """Says that a step does not fit, and the smallest change that does; None if it fits.

    It is a warning: the estimate has not been measured on GPUs and TPUs, and on a CPU the memory
    available changes with other processes, and there may be swap. On a GPU or TPU it is an error if
    the estimate is more than twice the memory. GPUs of which NVML does not report the memory are
    not checked, neither is a TPU whose type nobody names.

    Args:
      found: its strategy must be there, else nothing is checked.
      bert_config: the model.
      host_bytes: memory that this process may take on the host.
    """
    config = found.config
    asleep = config.emulate_step_seconds is not None
    if not found.strategy or found.errors or asleep:
        return None
    available, where = _memory_of(config, host_bytes)
    step = _step_of(found, bert_config)
    needed = step.total_bytes()
    if available is None or needed <= available:
        return None
    change = memory.smallest_change(step, available_bytes=available)
    return Finding(
        ERROR if step.device != "CPU" and needed > _FAR_OVER * available else WARNING,
        f"a step does not fit into the {available / 1e9:.1f} GB {where}: about "
        f"{needed / 1e9:.1f} GB; {_in_flags(found, change)}",
    )


def _memory_of(config: RunConfig, host_bytes: int) -> tuple[float | None, str]:
    """The memory of the device, None if it is not known, and how a message calls it."""
    if config.device.use_tpu:
        generation = config.tpu_type.rpartition("-")[0]
        return memory.TPU_BYTES.get(generation), f"of a device of this {config.tpu_type}"
    if config.device.num_gpus:
        return gpu_bytes(config.device.num_gpus), "of this GPU"
    return host_bytes, "available here"


def _kind_of(config: RunConfig) -> str:
    if config.device.use_tpu:
        return "TPU"
    return "GPU" if config.device.num_gpus else "CPU"


def gpu_bytes(num_gpus: int) -> int | None:
    """The memory of the smallest GPU; None if NVML does not report it, or it shows other GPUs too.

    NVML shows all GPUs in the order of the bus, whatever CUDA_VISIBLE_DEVICES says: only where it
    shows as many as the run uses are they the same, or where all have the same memory.
    """
    try:
        pynvml.nvmlInit()
        indices = range(pynvml.nvmlDeviceGetCount())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices]
        sizes = [pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles]
    except pynvml.NVMLError:
        return None
    are_ours = len(sizes) == num_gpus or len(set(sizes)) == 1
    return min(sizes) if sizes and are_ours else None


def _step_of(found: Inspection, bert_config: BertConfig) -> Step:
    config, strategy = found.config, found.strategy
    assert strategy is not None
    predictions = config.shape.max_predictions_per_seq
    compiled = compilation.choose(
        config.jit_compile, strategy=strategy, packs_sequences=config.pack_sequences
    )
    return Step(
        model=bert_config,
        # A packed batch may have as many rows as examples, and is compiled with as many.
        num_rows=config.train_batch_size // strategy.num_replicas_in_sync,
        sequence_length=config.shape.max_seq_length,
        predictions_per_row=(
            packing.predictions_per_row(predictions) if config.pack_sequences else predictions
        ),
        precision=config.precision,
        fused=pretrainer.is_fused(
            precision=config.precision,
            compile_passes=compiled.passes,
            pack_sequences=config.pack_sequences,
            recompute=config.recompute,
        ),
        recompute=config.recompute,
        steps_per_update=config.steps_per_update,
        device=_kind_of(config),
        copies_state=config.saves_while_training and _kind_of(config) == "CPU",
    )


def _in_flags(found: Inspection, change: Change | None) -> str:
    config = found.config
    if change is None:
        return "no change of --recompute and --train_batch_size makes it fit"
    flags = []
    if change.recompute != config.recompute:
        flags.append(f"--recompute={change.recompute}")
    if change.times_steps > 1:
        flags.append(f"--train_batch_size={config.train_batch_size // change.times_steps}")
        flags.append(f"--steps_per_update={config.steps_per_update * change.times_steps}")
        also = ", with the flags that count steps multiplied too (docs/training.md)"
    else:
        also = ""
    return f"{' '.join(flags)} does{also}"
