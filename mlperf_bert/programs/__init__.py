"""What runs on the devices: the step and the evaluation, and what executes them."""
