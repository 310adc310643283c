"""See `python -m experiments.expert_quality --help`."""
