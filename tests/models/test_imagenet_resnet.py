"""ResNet-18 with torchvision's stem: its state dict is taken whole, and its forward is torchvision's."""

import hashlib

import pytest
import torch
from libraries import library
from torch import nn

from protolith.errors import UserError
from protolith.models.backbones import input_of, open_backbone
from protolith.models.imagenet_resnet import ImageNetResNet18

NAME = "resnet18-imagenet"


def state_dict(seed=0, classes=1000):
    """Random weights by the names and shapes of torchvision's resnet18, written out."""
    rng = torch.Generator().manual_seed(seed)
    found = {}

    def conv(name, outputs, inputs, kernel):
        found[f"{name}.weight"] = (
            torch.randn(outputs, inputs, kernel, kernel, generator=rng) * (2 / (outputs * kernel**2)) ** 0.5
        )

    def norm(name, width):
        for part in ("weight", "running_var"):
            found[f"{name}.{part}"] = 0.5 + torch.rand(width, generator=rng)
        for part in ("bias", "running_mean"):
            found[f"{name}.{part}"] = torch.randn(width, generator=rng) * 0.1
        found[f"{name}.num_batches_tracked"] = torch.tensor(7)

    conv("conv1", 64, 3, 7)
    norm("bn1", 64)
    inputs = 64
    for stage, width in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            place = f"layer{stage}.{block}"
            conv(f"{place}.conv1", width, inputs, 3)
            norm(f"{place}.bn1", width)
            conv(f"{place}.conv2", width, width, 3)
            norm(f"{place}.bn2", width)
            if inputs != width:
                conv(f"{place}.downsample.0", width, inputs, 1)
                norm(f"{place}.downsample.1", width)
            inputs = width
    found["fc.weight"] = torch.randn(classes, 512, generator=rng) * 0.05
    found["fc.bias"] = torch.randn(classes, generator=rng) * 0.05
    return found


def test_a_state_dict_of_torchvision_is_taken_whole(tmp_path):
    weights = state_dict()
    torch.save(weights, tmp_path / "resnet18.pth")
    backbone = open_backbone(NAME, str(tmp_path / "resnet18.pth"))
    held = backbone.network.state_dict()
    assert len(weights) == 122 and sum(p.numel() for p in weights.values() if p.is_floating_point()) == 11_699_112
    assert set(held) == {name for name in weights if not name.startswith("fc.")}
    assert all(torch.equal(held[name], weights[name]) for name in held)
    assert torch.equal(backbone.imagenet.weight, weights["fc.weight"])
    assert backbone.sha256 == hashlib.sha256((tmp_path / "resnet18.pth").read_bytes()).hexdigest()
    assert (backbone.tag, backbone.length, backbone.maps()) == ("resnet18.pth", 512, (256, 14, 14))


def test_features_and_logits_are_torchvisions(tmp_path):
    torchvision = library("torchvision")
    weights = state_dict(3)
    theirs = torchvision.models.resnet18()
    assert {name: tensor.shape for name, tensor in theirs.state_dict().items()} == {
        name: tensor.shape for name, tensor in weights.items()
    }
    theirs.load_state_dict(weights)
    torch.save(weights, tmp_path / "w.pth")
    backbone = open_backbone(NAME, str(tmp_path / "w.pth"))
    images = torch.randn(2, 3, 97, 97, generator=torch.Generator().manual_seed(0))
    body = nn.Sequential(*list(theirs.eval().children())[:-1])
    with torch.inference_mode():
        features, expected = backbone.network.features(images), body(images).flatten(1)
        assert float((features - expected).abs().max() / expected.abs().max()) <= 1e-5
        logits, expected = backbone.imagenet(features), theirs(images)
        assert float((logits - expected).abs().max() / expected.abs().max()) <= 1e-5
        assert torch.equal(backbone.network.upper(backbone.network.lower(images)), features)


def test_its_input_is_torchvisions():
    torchvision = library("torchvision")
    theirs, spec = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms(), input_of(NAME)
    assert theirs.crop_size == [spec.size] and theirs.resize_size == [spec.size / spec.share]
    assert (tuple(theirs.mean), tuple(theirs.std)) == (spec.mean, spec.std)
    assert (theirs.interpolation.value, spec.resize) == (spec.interpolation, "crop")


def test_counters_that_old_files_lack_are_zero(tmp_path):
    weights = {name: t for name, t in state_dict().items() if not name.endswith("num_batches_tracked")}
    torch.save(weights, tmp_path / "old.pth")
    network = open_backbone(NAME, str(tmp_path / "old.pth")).network
    assert isinstance(network, ImageNetResNet18) and int(network.bn1.num_batches_tracked) == 0


def test_without_a_file_it_asks_for_one():
    with pytest.raises(UserError, match=r"torchvision's resnet18-f37072fd\.pth, or your own, with --weights FILE"):
        open_backbone(NAME)
