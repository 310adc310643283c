"""See `python -m experiments.trust --help`."""
