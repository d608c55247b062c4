"""Prototypes as a value: what is read from a record is what was written."""

from dataclasses import FrozenInstanceError

import pytest
import torch

from protolith.prototypes import CLUSTERS, GLOBAL, SENT, SENT_SEVERAL, PrototypeSet

VECTORS = torch.arange(15.0).view(5, 3)


def same(one, other):
    return torch.equal(one, other) and one.dtype == other.dtype


@pytest.mark.parametrize("form", [SENT_SEVERAL, CLUSTERS], ids=lambda form: form.vectors)
def test_a_list_stays_as_it_is(form):
    record = {form.vectors: VECTORS, form.beside: torch.tensor([0, 0, 2, 2, 3]), "other": torch.zeros(1)}
    found = PrototypeSet.from_record(record, form)
    assert same(found.vectors, VECTORS) and found.labels.tolist() == [0, 0, 2, 2, 3] and found.counts is None
    written = found.to_record(form)
    assert written.keys() == {form.vectors, form.beside} and all(same(written[name], record[name]) for name in written)


@pytest.mark.parametrize("beside", [torch.tensor([4, 0, 7, 0, 1]), torch.tensor([True, False, True, False, True])])
def test_of_a_row_for_every_class_those_that_are_there_are_listed(beside):
    form = GLOBAL if beside.dtype == torch.bool else SENT
    whole = torch.where((beside > 0)[:, None], VECTORS, 0.0)
    found = PrototypeSet.from_record({form.vectors: whole, form.beside: beside}, form)
    there = [place for place in range(5) if beside[place]]  # a plain loop
    assert found.labels.tolist() == there
    assert found.vectors.tolist() == [VECTORS[place].tolist() for place in there]
    assert found.counts is None if form is GLOBAL else found.counts.tolist() == [4, 7, 1]
    written = found.to_record(form, classes=5)
    assert same(written[form.vectors], whole) and same(written[form.beside], beside)


def test_the_first_form_that_is_there_counts():
    record = {"clusters": VECTORS, "cluster_labels": torch.tensor([0, 1, 1, 2, 2]), "global": VECTORS}
    assert PrototypeSet.from_record(record, GLOBAL, CLUSTERS).labels.tolist() == [0, 1, 1, 2, 2]  # `present` is absent
    both = {**record, "present": torch.tensor([False, True, False, False, False])}
    assert PrototypeSet.from_record(both, GLOBAL, CLUSTERS).labels.tolist() == [1]
    assert PrototypeSet.from_record({"w": VECTORS}, GLOBAL, CLUSTERS) is None


def test_a_set_is_not_changed():
    with pytest.raises(FrozenInstanceError):
        PrototypeSet(VECTORS, torch.zeros(5)).labels = torch.ones(5)
