"""timm's networks by name: its own features, its own input, its own positions; what is refused."""

import hashlib
import sys

import pytest
import torch
from libraries import library
from safetensors.torch import save_file

from protolith.errors import UserError
from protolith.models import from_timm
from protolith.models.backbones import empty_backbone, input_of, is_backbone, is_offline, open_backbone

SMALL = ["resnet10t", "test_vit", "test_convnext"]  # a plain one, one of fixed size, one with a norm above its pooling


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def written(timm, architecture, path, **args):
    """Random weights of a network of timm in a file, and the network."""
    torch.manual_seed(1)
    network = timm.create_model(architecture, **args).eval()
    save_file({name: tensor.contiguous().clone() for name, tensor in network.state_dict().items()}, path)
    return network


@pytest.mark.parametrize("architecture", SMALL)
def test_features_are_timms_without_a_classifier(architecture, tmp_path):
    timm, name = library("timm"), f"timm:{architecture}"
    whole = written(timm, architecture, tmp_path / "w.safetensors")
    headless = timm.create_model(architecture, num_classes=0).eval()
    headless.load_state_dict({k: v for k, v in whole.state_dict().items() if k in headless.state_dict()})
    backbone = open_backbone(name, str(tmp_path / "w.safetensors"))
    size = backbone.spec.size
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        features = backbone.network.features(images)
        assert relative(features, headless(images)) <= 1e-5
        assert relative(backbone.imagenet(features), whole(images)) <= 1e-5
    assert features.shape == (2, backbone.length) and not backbone.network.training
    assert backbone.sha256 == hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    empty = empty_backbone(name, said=backbone.about())
    assert empty.spec == backbone.spec and empty.length == backbone.length
    assert list(empty.network.state_dict()) == list(backbone.network.state_dict())


@pytest.mark.parametrize("architecture", SMALL)
def test_its_input_is_what_timm_says(architecture):
    timm = library("timm")
    network = timm.create_model(architecture)
    theirs = timm.data.resolve_model_data_config(network)
    spec = input_of(f"timm:{architecture}")
    assert theirs["input_size"] == (3, spec.size, spec.size) and theirs["crop_pct"] == spec.share
    assert (theirs["mean"], theirs["std"], theirs["interpolation"]) == (spec.mean, spec.std, spec.interpolation)
    assert theirs["crop_mode"] == "center" and spec.resize == "crop"


def test_a_network_of_fixed_size_takes_another_size(tmp_path):
    timm = library("timm")
    written(timm, "test_vit", tmp_path / "w.safetensors")
    backbone = open_backbone("timm:test_vit", str(tmp_path / "w.safetensors"), size=96)
    backbone.check()
    with pytest.raises(UserError, match="does not take images of 100 × 100 pixels"):
        open_backbone("timm:test_vit", str(tmp_path / "w.safetensors"), size=100).check()
    empty = empty_backbone("timm:test_vit", 96, backbone.about())
    empty.network.load_state_dict(backbone.network.state_dict())  # of the same shapes


def test_a_folder_that_timm_wrote(tmp_path):
    timm = library("timm")
    from timm.models import _hub as hub

    torch.manual_seed(2)
    network = timm.create_model("test_vit", num_classes=5, img_size=64).eval()
    hub.save_for_hf(network, tmp_path / "mine", safe_serialization=True)
    backbone = open_backbone(f"timm:{tmp_path / 'mine'}")
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        assert relative(backbone.imagenet(backbone.network.features(images)), network(images)) <= 1e-5
    digest = hashlib.sha256((tmp_path / "mine" / "model.safetensors").read_bytes()).hexdigest()
    assert (backbone.sha256, backbone.spec.size, len(backbone.imagenet.weight)) == (digest, 160, 5)
    config = tmp_path / "mine" / "config.json"  # of a network that takes one size only, the one that it was built for
    config.write_text(config.read_text().replace('"fixed_input_size": false', '"fixed_input_size": true'))
    assert input_of(f"timm:{tmp_path / 'mine'}").size == 64
    (tmp_path / "mine" / "config.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="not what timm writes beside its weights"):
        open_backbone(f"timm:{tmp_path / 'mine'}")


def test_a_file_without_a_head_will_do(tmp_path):
    timm = library("timm")
    headless = written(timm, "test_convnext", tmp_path / "w.safetensors", num_classes=0)
    backbone = open_backbone("timm:test_convnext", str(tmp_path / "w.safetensors"))
    images = torch.randn(1, 3, 96, 96)
    with torch.inference_mode():
        assert torch.equal(backbone.network.features(images), headless(images))
    assert backbone.imagenet is None and backbone.tag == "w.safetensors"


def test_weights_of_another_network_are_one_sentence(tmp_path):
    timm = library("timm")
    written(timm, "resnet10t", tmp_path / "w.safetensors")
    with pytest.raises(UserError, match="does not hold the weights of timm:test_vit") as refused:
        open_backbone("timm:test_vit", str(tmp_path / "w.safetensors"))
    assert "\n" not in str(refused.value)


def test_wrong_names_are_one_sentence():
    library("timm")
    with pytest.raises(UserError, match="Did you mean 'timm:resnet10t'"):
        input_of("timm:resnet10x")
    with pytest.raises(UserError, match="timm has no weights 'mine' of resnet10t: it has c3_in1k"):
        input_of("timm:resnet10t.mine")


def test_no_network_names_the_two_ways_out(monkeypatch, tmp_path):
    library("timm")
    hub = pytest.importorskip("huggingface_hub")

    def absent(*args, local_files_only, **options):
        if local_files_only:
            raise hub.errors.LocalEntryNotFoundError("not in the cache")
        raise ConnectionError("Network is unreachable\nand more")

    monkeypatch.setattr(hub, "hf_hub_download", absent)
    with pytest.raises(UserError) as refused:
        open_backbone("timm:resnet10t")
    said = str(refused.value)
    assert "Network is unreachable" in said and "\n" not in said
    assert "timm:DIRECTORY" in said and "--weights FILE" in said


def test_what_is_in_the_hubs_cache_is_not_asked_for_again(monkeypatch, tmp_path):
    timm = library("timm")
    hub = pytest.importorskip("huggingface_hub")
    written(timm, "resnet10t", tmp_path / "model.safetensors")
    asked = []

    def cached(repo, file, local_files_only, **options):
        asked.append((repo, file, local_files_only))
        return str(tmp_path / file)

    monkeypatch.setattr(hub, "hf_hub_download", cached)
    assert open_backbone("timm:resnet10t").tag == "c3_in1k"
    assert asked == [("timm/resnet10t.c3_in1k", "model.safetensors", True)]


def without(monkeypatch, error):
    """As on a machine where timm cannot be imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)

    class Refusing:
        def find_spec(self, name, path=None, target=None):
            if name == "timm":
                raise error
            return None

    monkeypatch.setattr(sys, "meta_path", [Refusing(), *sys.meta_path])


def test_a_torchvision_that_does_not_fit_is_one_sentence(monkeypatch):
    without(monkeypatch, RuntimeError("operator torchvision::nms does not exist"))
    with pytest.raises(UserError, match="the torchvision that is installed does not fit this torch") as refused:
        input_of("timm:resnet10t")
    assert str(refused.value).count(". ") == 0


def test_a_library_that_is_not_there_is_one_sentence(monkeypatch):
    without(monkeypatch, ModuleNotFoundError("No module named 'timm'", name="timm"))
    with pytest.raises(UserError, match=r"pip install 'protolith\[timm\]'"):
        input_of("timm:resnet10t")


def test_images_that_are_no_squares_are_refused():
    said = {"input_size": (3, 160, 160), "crop_mode": "center", "crop_pct": 0.9, "mean": (0.5,) * 3, "std": (0.5,) * 3,
            "interpolation": "bicubic"}  # fmt: skip
    assert from_timm.Known("x", {}, said, None).spec.size == 160
    for wrong in ({"input_size": (3, 224, 160)}, {"crop_mode": "border"}, {"interpolation": "random"}):
        with pytest.raises(ValueError):
            _ = from_timm.Known("x", {}, {**said, **wrong}, None).spec


def test_names_of_libraries_are_backbones_from_outside():
    assert is_backbone("timm:anything") and not is_offline("timm:anything")
    assert not is_backbone("timmy")
