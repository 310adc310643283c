"""See `python -m experiments.deep_sea --help`."""
