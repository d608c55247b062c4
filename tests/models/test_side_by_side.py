"""Several backbones at once: features in a row, each with its own colours, from the same stored images."""

from dataclasses import replace

import pytest
import torch
from test_imagenet_resnet import state_dict

from protolith.errors import UserError
from protolith.models import build_model
from protolith.models.backbones import empty_backbone, input_of, is_backbone, open_backbone, parts_of
from protolith.models.packaged import PACKAGED
from protolith.models.side_by_side import beside
from protolith.models.spec import InputSpec


@pytest.fixture
def files(tmp_path):
    """Two files of random weights, for two backbones of one kind."""
    for seed in (0, 1):
        torch.save(state_dict(seed), tmp_path / f"{seed}.pth")
    return [str(tmp_path / f"{seed}.pth") for seed in (0, 1)]


BOTH = "resnet18-imagenet+resnet18-imagenet"


def stored(size=64):
    return torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_features_stand_in_a_row(files):
    joint = open_backbone(BOTH, "+".join(files), 64)
    apart = [open_backbone("resnet18-imagenet", file, 64) for file in files]
    inputs = joint.spec.inputs(stored(), torch.device("cpu"))
    with torch.inference_mode():
        expected = torch.cat([part.network.features(inputs) for part in apart], dim=1)
        assert torch.equal(joint.network.features(inputs), expected)
    assert joint.length == 1024 and joint.spec.size == 64 and joint.maps() is None
    said = joint.about()
    assert said["sha256"] == "+".join(part.sha256 for part in apart) and said["tag"] == "0.pth+1.pth"
    assert said["parts"] == [part.about() for part in apart]
    joint.check()
    empty = empty_backbone(BOTH, 64, said)
    empty.network.load_state_dict(joint.network.state_dict())


def test_each_sees_its_own_colours(files, monkeypatch):
    other = InputSpec(224, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), "crop", share=224 / 256)
    kind = PACKAGED["resnet18-imagenet"]
    apart = [open_backbone("resnet18-imagenet", file, 64) for file in files]
    monkeypatch.setitem(PACKAGED, "other", replace(kind, spec=other))
    changed = [apart[0], open_backbone("other", files[1], 64)]
    joint = beside(changed)
    with torch.inference_mode():
        expected = [part.network.features(part.spec.inputs(stored(), torch.device("cpu"))) for part in changed]
        found = joint.network.features(joint.spec.inputs(stored(), torch.device("cpu")))
        plain = apart[1].network.features(apart[1].spec.inputs(stored(), torch.device("cpu")))
    assert float((found - torch.cat(expected, dim=1)).abs().max() / found.abs().max()) <= 1e-5
    assert float((expected[1] - plain).abs().max()) > 1e-3


def test_other_weights_of_one_of_them_are_refused(files):
    begun = open_backbone(BOTH, "+".join(files), 64).sha256
    with pytest.raises(UserError, match="not those that the run began with: SHA-256"):
        open_backbone(BOTH, "+".join(reversed(files)), 64, begun)
    open_backbone(BOTH, "+".join(files), 64, begun)


def test_a_file_for_each_of_them(files):
    with pytest.raises(UserError, match="names 1 of 2 files"):
        open_backbone(BOTH, files[0])
    with pytest.raises(UserError, match="takes its weights from a file"):
        open_backbone(BOTH, files[0] + "+")


def test_they_are_seen_at_the_first_ones_size():
    assert input_of("efficientnet-lite0+efficientnet-lite1") == input_of("efficientnet-lite0")
    model = build_model("efficientnet-lite0+efficientnet-lite1", 3, 8, seed=0, empty=True)
    assert model.head.in_features == 2560 and model.spec.size == 224


def test_images_fitted_in_two_ways_are_refused():
    with pytest.raises(UserError, match="cannot stand side by side") as refused:
        input_of("efficientnet-lite0+resnet18-imagenet")
    assert "squash bicubic 1 and crop bilinear 0.875" in str(refused.value)


def test_at_most_three_and_only_backbones():
    name = "efficientnet-lite0"
    assert is_backbone("+".join([name] * 3)) and not is_backbone(f"{name}+resnet10")
    with pytest.raises(UserError, match="at most 3"):
        input_of("+".join([name] * 4))
    with pytest.raises(UserError, match=r"unknown (model|backbone)"):
        build_model(f"{name}+resnet10", 2, 8, seed=0)


def test_a_plus_in_a_folders_name_joins_nothing():
    assert parts_of("hf:/a+b/c+timm:d.e+efficientnet-lite0") == ["hf:/a+b/c", "timm:d.e", "efficientnet-lite0"]
