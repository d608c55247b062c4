"""A real federation: its directory, its certificates and keys, its processes, its runs."""
