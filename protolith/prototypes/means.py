"""A client's class prototypes, and the two ways of writing a set of prototypes down."""

import torch
from torch import Tensor

from protolith.devices import exact


class ClassMeans:
    """Mean feature of each class over all batches, added up in float64 (FPL, I2PFL and FedCode Eq. 2)."""

    def __init__(self, classes: int, dim: int) -> None:
        self.sums = torch.zeros(classes, dim, dtype=torch.float64)
        self.counts = torch.zeros(classes, dtype=torch.int64)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add a batch of features [B, d] with labels [B]; no gradient is kept."""
        labels = labels.to(self.counts)
        self.sums.index_add_(0, labels, exact(features))
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def means(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the prototypes [K, d]; zeros for classes that were never seen."""
        return (self.sums / self.counts.clamp_min(1)[:, None]).to(dtype)


def sent_means(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """The prototypes [K, d] and whole counts [K] that are sent, from sums and counts; below one image, nothing."""
    sums, counts = sums.double(), counts.double()
    sent = counts >= 1
    means = torch.where(sent[:, None], sums / counts.clamp_min(1.0)[:, None], 0.0)
    return means.float(), torch.where(sent, counts.round(), 0.0).to(torch.int64)


def labelled(prototypes: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """List what is present of [K, d] or, client by client, of [M, K, d]: points [N, d] and classes [N]."""
    held = present > 0
    return prototypes[held], held.nonzero()[:, -1]
