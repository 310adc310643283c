"""See `python -m experiments.demos --help`."""
