"""How a server makes one of many: streaming means of records, one in memory, however many clients there are."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from protolith.records import Record


def is_buffer(name: str) -> bool:
    """Tell whether a name of a state dict is one of BatchNorm's buffers."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


class Mean(Protocol):
    """What takes in records with their weights, and makes one of them in the end."""

    weight: float  # of all records so far

    def add(self, record: Mapping[str, Tensor], weight: float) -> None:
        """Take in one more record; one without weight is left out."""
        ...

    def mean(self) -> Record:
        """What became of the records, in their types (empty when nothing came)."""
        ...


class Pooling:
    """How a method's server makes one of many: by its own means. A layer may put another one in its place."""

    def averaging(self, origin: Mapping[str, Tensor] | None = None) -> Mean:
        """Begin a mean of records; moves are measured from `origin` (zeros when there is none)."""
        return RecordMean()

    def moderate(self, points: Tensor) -> Tensor:
        """Make the clients' points [M, ...] safe to use one by one."""
        return points

    def prototypes(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Make prototypes [M, K, d] safe class by class; one that is left out has the count 0."""
        return prototypes, counts

    def within_reach(self, points: Tensor, labels: Tensor, senders: Tensor) -> Tensor:
        """Make points [N, d] safe of which a client has several in a class."""
        return points


class RecordMean:
    """The weighted mean of records, updated as they come.

    The mean is kept, not the sum, so that its error does not grow with the number of clients. Integers
    (BatchNorm's counter of batches) are averaged as floats and truncated.
    """

    def __init__(self) -> None:
        self.weight = 0.0
        self._mean: Record = {}

    def add(self, record: Mapping[str, Tensor], weight: float) -> None:
        """Take in one more record."""
        if weight <= 0:
            return
        self.weight += weight
        if not self._mean:
            self._types = {name: tensor.dtype for name, tensor in record.items()}
            self._mean = {name: self._float(tensor).clone() for name, tensor in record.items()}
            return
        share = weight / self.weight
        for name, mean in self._mean.items():
            mean.lerp_(self._float(record[name]), share)

    def mean(self) -> Record:
        """The mean so far, in the types of the records (empty when nothing came)."""
        return {name: tensor.to(self._types[name]) for name, tensor in self._mean.items()}

    @staticmethod
    def _float(tensor: Tensor) -> Tensor:
        return tensor if tensor.is_floating_point() else tensor.to(torch.float64)
