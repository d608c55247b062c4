"""Reads finished runs, writes figures and reports."""
