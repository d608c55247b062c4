"""Encoded tasks: the network's own features, found again, opened by worker processes, and divided among clients."""

from dataclasses import replace

import pytest
import torch
from encoding_helpers import SIZE, Tiny, make_task, tiny
from torch import nn

from protolith.data import cache as decoded
from protolith.data.domain import Split
from protolith.data.protocols import Client, data_of, select
from protolith.data.styles import statistics
from protolith.data.tasks import read_task_file
from protolith.encoding import Views, about_encoded, encode_task
from protolith.encoding import encode as module
from protolith.errors import UserError
from protolith.models.spec import InputSpec


def plainly(backbone, image, part="features"):
    """One image through the network, by the formula."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (backbone.spec.mean, backbone.spec.std))
    seen = (image.permute(2, 0, 1) / 255 - mean) / std
    with torch.inference_mode():
        return getattr(backbone.network, part)(seen[None])[0]


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
    lines = len(said)
    again = encode_task(make_task(), tiny(), cache=tmp_path, progress=said.append)
    assert again.file == first.file and torch.equal(again.domains[0].train.images, first.domains[0].train.images)
    assert len(said) == lines


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


def test_a_line_a_second_at_most(monkeypatch):
    now, said = [100.0], []
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    meter = module._Meter("encoding", 1000, 900, said.append)
    for _ in range(9):
        now[0] += 0.4
        meter.add(100)
    assert said == [
        "encoding: 1,000 pictures, 100 of them done before",
        "encoding: 400 of 1,000 pictures, about 2 s left",
        "encoding: 700 of 1,000 pictures, about 1 s left",
        "encoding: 1,000 of 1,000 pictures, in 3.6 s",
    ]


def changed(task, index, split):
    domains = list(task.domains)
    domains[0] = replace(domains[0], **{("train", "test")[index]: split})
    return replace(task, domains=tuple(domains))


def test_everything_that_decides_the_features_is_in_the_files_name(tmp_path, by_torch):
    task, network = make_task(), Tiny()
    train = task.domains[0].train
    pixel = train.images.clone()
    pixel[3, 2, 1, 0] ^= 1
    other = Tiny()
    other.second.bias.data += 1
    cases = {
        "as it is": {},
        "a pixel": {"task": changed(task, 0, Split(pixel, train.labels))},
        "a label": {"task": changed(task, 0, Split(train.images, 1 - train.labels))},
        "a border": {"task": changed(changed(task, 0, task.domains[0].test), 1, train)},
        "a domain's name": {"task": make_task(names=("a", "c"))},
        "notes": {"task": replace(task, notes=())},
        "the backbone's name": {"backbone": tiny("other", network=network)},
        "its weights": {"backbone": tiny(sha256="1" * 64, network=network)},
        "its weights without a file": {"backbone": tiny(sha256="", network=network)},
        "other weights without a file": {"backbone": tiny(sha256="", network=other)},
        "its input": {"backbone": tiny(network=network, spec=InputSpec(SIZE, mean=(0.5, 0.5, 0.5)))},
        "the part": {"part": "maps"},
        "one view": {"views": Views(1)},
        "two views": {"views": Views(2)},
        "a view of another kind": {"views": Views(1, ("grey",))},
    }
    common = {"task": task, "backbone": tiny(network=network), "cache": tmp_path}
    files = {name: encode_task(**{**common, **case}).file for name, case in cases.items()}
    assert len(set(files.values())) == len(cases)
    assert encode_task(**common, views=Views(0, ("grey",))).file == files["as it is"]  # no views are of no kind
    assert encode_task(**common, views=Views(1, ("grey", "edges"))).file == files["a view of another kind"]


def test_views_of_another_version_are_others(tmp_path, by_torch, monkeypatch):
    plain, viewed = (encode_task(make_task(), tiny(), views=Views(count), cache=tmp_path).file for count in (0, 1))
    monkeypatch.setattr(module, "VERSION", module.VERSION + 1)
    assert encode_task(make_task(), tiny(), cache=tmp_path).file == plain
    assert encode_task(make_task(), tiny(), views=Views(1), cache=tmp_path).file != viewed


def test_a_decoded_file_is_read_through_once(tmp_path, by_torch, monkeypatch):
    path = tmp_path / "toy.safetensors"
    task = decoded.write(path, make_task(), {})
    first = encode_task(task, tiny(), cache=tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_of_pixels", None)
        again = encode_task(decoded.read(path), tiny(), cache=tmp_path)
    assert again.file == first.file == encode_task(make_task(), tiny(), cache=tmp_path).file
    other = decoded.write(path, make_task(seed=5), {})
    assert encode_task(other, tiny(), cache=tmp_path).file != first.file


def test_the_file_says_how_it_was_made(tmp_path, by_torch):
    backbone = tiny()
    found = encode_task(make_task(), backbone, views=Views(2, ("grey", "edges", "crop")), cache=tmp_path)
    said = about_encoded(found.file)
    assert said["backbone"] == backbone.about() and said["part"] == "features" and said["views"] == ["grey", "edges"]
    assert said["encoder"] == f"PyTorch {torch.__version__}"
    assert about_encoded(decoded.write(tmp_path / "toy.safetensors", make_task(), {}).file) == {}


def test_views_are_encoded_as_images_are(tmp_path, by_torch):
    task, backbone, views = make_task(), tiny(), Views(7)
    found = encode_task(task, backbone, views=views, cache=tmp_path).domains[1].train
    images = task.domains[1].train.images
    pictures = views.of(images, views.draw("b*", len(images)))
    for row in (0, 13):
        for view in range(8):
            assert torch.allclose(found.images[row, view], plainly(backbone, pictures[row, view]), atol=1e-5)
