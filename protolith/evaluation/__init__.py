"""Accuracy by test set and by domain."""
