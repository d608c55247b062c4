"""Streaming means of records: one record in memory, however many clients there are."""

from collections.abc import Mapping

import torch
from torch import Tensor

from protolith.records import Record


def is_buffer(name: str) -> bool:
    """Tell whether a name of a state dict is one of BatchNorm's buffers."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


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
