"""Where clients' work is executed."""
