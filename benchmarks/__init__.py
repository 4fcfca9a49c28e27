"""The benchmarks: `python benchmarks/run.py`. README.md in this folder has the results."""
