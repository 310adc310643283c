"""What makes a run a run: config, folder, loop, checkpoints, metrics, reports, pictures."""
