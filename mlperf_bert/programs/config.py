"""What XLA compiles of a step, and what a step reports; does not import TensorFlow."""

import dataclasses

LOSSES = ("loss", "masked_lm_loss", "next_sentence_loss")
STEP_FIGURES = (*LOSSES, "num_real_tokens", "num_rows", "input_wait_seconds")
"""What a step of pre-training reports, in this order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compilation:
    """What XLA compiles, and why."""

    reason: str
    passes: bool = False
    """Each element-wise pass of the model (model/fusion.py), and LAMB for each shape."""
    step: bool = False
    """Forward and backward pass as one program, clipping and LAMB as another."""
    clusters: bool = False
    """TensorFlow compiles clusters of operations by itself: TF_XLA_FLAGS asks for it."""
    exported: bool = False
    """The whole step is exported, for jax to compile."""
    barriers: bool = False
    """Barriers tell XLA what to keep in memory. This helps GPUs; TPUs decide better alone."""

    @property
    def whole_step(self) -> bool:
        """Whether the step is one program, or two."""
        return self.step or self.exported

    @property
    def each_pass(self) -> bool:
        """Whether every pass of a step is a program of its own."""
        return self.passes and not self.whole_step

    def __str__(self) -> str:
        what = "clusters of operations" if self.clusters else "nothing"
        if self.whole_step:
            what = "the whole step"
        elif self.passes:
            what = "the passes between the matrix products"
        return f"XLA compiles {what}: {self.reason}"


NO_COMPILATION = Compilation(reason="--jit_compile=false")
