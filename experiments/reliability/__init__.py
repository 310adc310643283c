"""See `python -m experiments.reliability --help`."""
