"""The step and the evaluation that run on the devices, and what executes them."""
