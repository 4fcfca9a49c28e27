"""The benchmarks: `python benchmarks/run.py`. What they show stands in README.md beside them."""
