"""See `python -m experiments.report --help`."""
