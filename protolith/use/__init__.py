"""From images to a model in use: check, predict, export, diagnose, and what a run is worth to each site."""
