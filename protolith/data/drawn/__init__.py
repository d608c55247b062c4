"""Domains that are drawn and not read: the embedded task `mini`, and `syn*`, which stands in for SYN."""
