"""See `python -m experiments.tabular --help`."""
