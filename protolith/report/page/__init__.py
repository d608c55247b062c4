"""The report: one page that explains runs, as a file or while they train."""
