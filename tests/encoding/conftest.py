"""Fixtures of the tests of encoding."""

import encoding_helpers
import pytest


@pytest.fixture
def by_torch(monkeypatch):
    """PyTorch encodes, wherever else ONNX Runtime is installed: small networks are not worth an export."""
    encoding_helpers.take_torch(monkeypatch.setattr)


@pytest.fixture
def small_pieces(monkeypatch):
    """Work in pieces of four pictures."""
    encoding_helpers.take_small_pieces(monkeypatch.setattr)
