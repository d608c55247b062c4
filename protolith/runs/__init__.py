"""Configuration, run directory, checkpoints, resume."""
