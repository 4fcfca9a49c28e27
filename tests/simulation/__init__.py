"""A merchant's whole world in one process and one thread, on virtual time, with faults drawn from a seed.

`python -m tests.simulation --seed 42`. docs/design.md says what is simulated, and what is not.
"""
