"""The training step as a program for compilers and simulators, and what runs and compiles it."""
