"""Prototypes as a value, and the forms in which they stand in records."""

from dataclasses import dataclass

import torch
from torch import Tensor

from protolith.prototypes.means import labelled
from protolith.records import Record


@dataclass(frozen=True)
class Form:
    """The names of a set's tensors in a record.

    A `whole` one has a row for every class, [K, d], beside counts or marks [K] that are 0 for absent classes; another
    lists vectors [N, d] beside their classes [N].
    """

    vectors: str
    beside: str
    whole: bool

    def is_in(self, record: Record) -> bool:
        """Tell whether a record has both tensors."""
        return self.vectors in record and self.beside in record


SENT = Form("prototypes", "counts", whole=True)  # by a client, one a class
SENT_SEVERAL = Form("prototypes", "labels", whole=False)  # by a client, any number a class
GLOBAL = Form("global", "present", whole=True)  # the server's, one a class
CLUSTERS = Form("clusters", "cluster_labels", whole=False)  # the server's, any number a class


@dataclass(frozen=True)
class PrototypeSet:
    """Vectors [N, d] that stand for classes, the class of each [N], and where it is known the images behind it [N]."""

    vectors: Tensor
    labels: Tensor
    counts: Tensor | None = None

    @classmethod
    def from_record(cls, record: Record, *forms: Form) -> "PrototypeSet | None":
        """Read the first of these forms that a record has; None where it has none of them."""
        form = next((form for form in forms if form.is_in(record)), None)
        if form is None:
            return None
        vectors, beside = record[form.vectors], record[form.beside]
        if not form.whole:
            return cls(vectors, beside)
        counts = None if beside.dtype == torch.bool else beside[beside > 0]
        return cls(*labelled(vectors, beside), counts)

    def to_record(self, form: Form, classes: int = 0) -> Record:
        """Write it in a form; a whole one needs the number of classes, and at most one vector for each."""
        if not form.whole:
            return {form.vectors: self.vectors, form.beside: self.labels}
        vectors = self.vectors.new_zeros(classes, self.vectors.shape[1])
        vectors[self.labels] = self.vectors
        held = torch.ones_like(self.labels, dtype=torch.bool) if self.counts is None else self.counts
        beside = held.new_zeros(classes)
        beside[self.labels] = held
        return {form.vectors: vectors, form.beside: beside}
