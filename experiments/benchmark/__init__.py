"""See `python -m experiments.benchmark --help`."""
