"""Random numbers that depend on what they are for, and on nothing else."""

import hashlib

import torch


def derive(*parts: int | str) -> int:
    """Hash the parts into a 63-bit seed, so that changing any part changes all the numbers drawn from it."""
    digest = hashlib.sha256("\x1f".join(str(part) for part in parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*parts: int | str) -> torch.Generator:
    """Return a CPU generator seeded by `derive(*parts)`."""
    return torch.Generator().manual_seed(derive(*parts))
