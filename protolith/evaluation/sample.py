"""Which test images are looked at more closely: a bounded draw in which classes keep their shares."""

import torch
from torch import Tensor


def draw(labels: Tensor, limit: int, rng: torch.Generator) -> Tensor:
    """Draw at most `limit` places so that classes keep their shares; a smaller draw is part of a larger one.

    Seats are given out as Webster gives them to parties: the i-th image of a class of n, in random order, has
    the place (i + ½) / n, and the lowest places are taken.
    """
    order = torch.randperm(len(labels), generator=rng)
    order = order[torch.argsort(labels[order], stable=True)]
    counts = torch.bincount(labels)
    rank = torch.arange(len(labels)) - (counts.cumsum(0) - counts)[labels[order]]
    place = (rank + 0.5) / counts[labels[order]]
    return order[torch.argsort(place, stable=True)[:limit]].sort().values
