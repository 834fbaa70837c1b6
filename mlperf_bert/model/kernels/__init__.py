"""Kernels of a step for NVIDIA's GPUs: attention, and LayerNorm with what precedes it.

attention.py and norm.py say what they compute, in Pallas's Triton dialect. triton_ir.py writes them
as Triton's intermediate representation, *.mlir beside it, which model/kernel_encoder.py calls.
"""

BLOCK, INNER = 64, 64
"""Queries or keys that a program of attention has, and those that it takes at a time."""
ROWS, STEPS = 4, 8
"""Tokens that a program of LayerNorm takes at a time, and how often one of its gradient does."""
NUM_HEADS, HEAD_SIZE = 16, 64
"""The sizes of BERT-large, for which *.mlir is made."""
