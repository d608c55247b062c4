"""Many runs: sweeps, and tables of what came out."""
