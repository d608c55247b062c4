"""syn*: the same bytes every time, balanced classes, any size, readable contrast."""

from inspect import signature

import pytest
import torch

from protolith.data.drawn import syn


@pytest.fixture(scope="module")
def domain():
    return syn.render(32, train=1_200, test=300)


def test_two_renderings_are_byte_identical(domain):
    again = syn.render(32, train=1_200, test=300)
    for one, other in ((domain.train, again.train), (domain.test, again.test)):
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_name_shapes_and_balance(domain):
    assert domain.name == "syn*"
    assert domain.train.images.shape == (1_200, 32, 32, 3) and domain.train.images.dtype == torch.uint8
    assert domain.test.images.shape == (300, 32, 32, 3)
    assert set(domain.train.counts(10)) == {120} and set(domain.test.counts(10)) == {30}


def test_no_image_is_there_twice(domain):
    images = torch.cat([domain.train.images, domain.test.images]).flatten(1)
    assert len(images.unique(dim=0)) == len(images)


@pytest.mark.parametrize("size", [16, 28, 64, 97])
def test_other_sizes_and_uneven_counts(size):
    domain = syn.render(size, train=37, test=12)
    assert domain.train.images.shape == (37, size, size, 3)
    assert sorted(set(domain.train.counts(10))) == [3, 4] and sum(domain.test.counts(10)) == 12


def test_every_image_shows_something(domain):
    brightness = (domain.train.images.float() @ torch.tensor([0.299, 0.587, 0.114])).flatten(1)
    assert brightness.std(dim=1).min() > 4


def test_full_size_is_that_of_the_original():
    counts = {name: parameter.default for name, parameter in signature(syn.render).parameters.items()}
    assert (counts["train"], counts["test"]) == (10_000, 2_000)
