"""Encoded tasks: the network's own features, found again, opened by worker processes, and divided among clients."""

import pytest
import torch
from torch import nn

from protolith.data.domain import Domain, Split, Task
from protolith.data.protocols import Client, data_of, select
from protolith.data.styles import statistics
from protolith.data.tasks import read_task_file
from protolith.encoding import Views, encode_task, encoders
from protolith.encoding import encode as module
from protolith.errors import UserError
from protolith.models.backbones import Backbone
from protolith.models.spec import InputSpec

SIZE = 12


class Tiny(nn.Module):
    """Two convolutions, divided between them."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 5, 3)

    def lower(self, images):
        return self.first(images).relu()

    def upper(self, maps):
        return self.second(maps).mean(dim=(2, 3))

    def features(self, images):
        return self.upper(self.lower(images))


def tiny(name="tiny", sha256="0" * 64, network=None):
    return Backbone(name, "", sha256, InputSpec(SIZE), 5, network or Tiny())


def make_task(count=20, size=SIZE, names=("a", "b*"), seed=0):
    def split(seed, count):
        rng = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=rng)
        return Split(images, torch.arange(count) % 2)

    domains = [Domain(name, split(seed + 2 * i, count), split(seed + 2 * i + 1, 7)) for i, name in enumerate(names)]
    return Task("toy", ("x", "y"), tuple(domains), ("a: a note",))


def plainly(backbone, image, part="features"):
    """One image through the network, by the formula."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.spec.mean, backbone.spec.std))
    seen = (image.permute(2, 0, 1) / 255 - mean) / std
    with torch.inference_mode():
        return getattr(backbone.network, part)(seen[None])[0]


@pytest.fixture
def by_torch(monkeypatch):
    monkeypatch.setattr(module, "encoder_for", lambda backbone, part, *rest: encoders.by_torch(backbone, part))


@pytest.mark.parametrize(
    ("part", "ask", "kind"), [("features", "features", torch.float32), ("maps", "lower", torch.float16)]
)
def test_each_image_is_encoded_as_by_itself(tmp_path, by_torch, part, ask, kind):
    task, backbone = make_task(), tiny()
    found = encode_task(task, backbone, part, cache=tmp_path)
    assert (found.name, found.classes, found.size) == (task.name, task.classes, 0)
    assert found.notes[:-1] == task.notes and "tiny by PyTorch" in found.notes[-1]
    for domain, encoded in zip(task.domains, found.domains, strict=True):
        assert domain.name == encoded.name
        for one, other in ((domain.train, encoded.train), (domain.test, encoded.test)):
            expected = torch.stack([plainly(backbone, image, ask) for image in one.images])
            assert (
                other.encoded
                and other.images.dtype == kind
                and other.images.shape == (len(one), 1, *expected.shape[1:])
            )
            assert torch.allclose(other.images[:, 0].float(), expected, atol=1e-3 if part == "maps" else 1e-5)
            assert torch.equal(other.labels, one.labels)
            assert torch.allclose(other.colours, statistics(one.images), atol=1e-6)


def test_worker_processes_map_the_same_file(tmp_path, by_torch):
    found = encode_task(make_task(), tiny(), views=Views(3), cache=tmp_path)
    again = read_task_file(found.file)
    assert again.notes == found.notes
    for one, other in zip(found.domains, again.domains, strict=True):
        assert torch.equal(one.train.images, other.train.images) and torch.equal(one.train.colours, other.train.colours)
        assert one.train.images.shape == (20, 4, 5) and one.test.images.shape == (7, 1, 5)


def test_the_second_time_nothing_is_computed(tmp_path, by_torch, monkeypatch):
    said = []
    first = encode_task(make_task(), tiny(), cache=tmp_path, progress=said.append)
    assert said[0].startswith("encoding toy by PyTorch") and "54 of 54 pictures, in " in said[-1]
    monkeypatch.setattr(module, "_encode", None)
    again = encode_task(make_task(), tiny(), cache=tmp_path, progress=said.append)
    assert again.file == first.file and torch.equal(again.domains[0].train.images, first.domains[0].train.images)
    assert len(said) == 2


def test_a_client_gets_its_features_and_colours(tmp_path, by_torch):
    found = encode_task(make_task(), tiny(), views=Views(2), cache=tmp_path)
    domain = found.domains[0]
    held = select(domain, torch.tensor([19, 3]))
    assert torch.equal(held.images, domain.train.images[[19, 3]])
    assert torch.equal(held.colours, domain.train.colours[[19, 3]])
    tested = select(domain, torch.arange(20, 27))
    assert torch.equal(tested.images, domain.test.images) and torch.equal(tested.colours, domain.test.colours)
    both = select(domain, torch.tensor([0, 26]))
    assert torch.equal(both.images[0], domain.train.images[0])
    assert torch.equal(both.images[1], domain.test.images[6].expand(3, -1))
    pool = data_of(found, Client(0, "pool", "", torch.tensor([1, 27 + 2])))
    assert torch.equal(pool.images, torch.stack([domain.train.images[1], found.domains[1].train.images[2]]))
    assert torch.equal(pool.colours[1], found.domains[1].train.colours[2])


def test_what_cannot_be_encoded_is_said(tmp_path, by_torch):
    class Whole(nn.Module):
        def features(self, images):
            return images.mean(dim=(2, 3))

    with pytest.raises(UserError, match="backbone whole has no last stage that can be trained alone"):
        encode_task(make_task(), tiny("whole", network=Whole()), "maps", cache=tmp_path)
    with pytest.raises(ValueError, match="is encoded already"):
        encode_task(encode_task(make_task(), tiny(), cache=tmp_path), tiny(), cache=tmp_path)
