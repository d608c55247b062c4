"""Reads finished runs, writes figures and reports."""

from protolith.extras import need

need("the report and figures", "report")  # every module here, before it is imported
