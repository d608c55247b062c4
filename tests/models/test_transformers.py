"""Networks of transformers, from folders that it wrote: what its own classifiers' heads get; what is refused."""

import hashlib
import json
import shutil
import subprocess
import sys

import pytest
import torch
from libraries import library

import protolith as pl
from protolith.errors import UserError
from protolith.models.backbones import empty_backbone, input_of, open_backbone
from protolith.models.from_transformers import _spec
from protolith.models.spec import InputSpec, see
from protolith.models.weights import digest_of

COLOURS = {"image_mean": [0.5, 0.5, 0.25], "image_std": [0.5, 0.5, 0.2]}
PROCESSOR = {"size": {"height": 32, "width": 32}, "resample": 3, **COLOURS}


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def classifier(kind, seed=0):
    """A tiny image classifier of the library with random weights."""
    transformers = library("transformers")
    torch.manual_seed(seed)
    deep = {"depths": [1, 1, 1, 1], "num_labels": 5}
    if kind == "vit":
        config = transformers.ViTConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32,
            patch_size=8, num_labels=5,
        )  # fmt: skip
    elif kind == "convnext":
        config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], layer_scale_init_value=0.5, **deep)
    else:
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], layer_type="basic", **deep)
    return transformers.AutoModelForImageClassification.from_config(config).eval()


def saved(model, folder, processor=PROCESSOR, **options):
    model.save_pretrained(folder, **options)
    if processor:
        (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return f"hf:{folder}"


def pooled(model, images):
    """What the library's own head gets, seen by a hook on the head."""
    seen = []
    hook = model.classifier.register_forward_pre_hook(lambda module, given: seen.append(given[0].flatten(1)))
    logits = model(images).logits
    hook.remove()
    return seen[0], logits


@pytest.mark.parametrize("kind", ["vit", "convnext", "resnet"])
def test_features_are_what_its_own_head_gets(kind, tmp_path):
    model = classifier(kind)
    name = saved(model, tmp_path)
    images = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    backbone = open_backbone(name)
    with torch.inference_mode():
        expected, logits = pooled(model, images)
        features = backbone.network.features(images)
        assert relative(features, expected) <= 1e-5
        assert relative(backbone.imagenet(features), logits) <= 1e-5
    assert features.shape == (3, backbone.length) and not backbone.network.training
    assert backbone.sha256 == hashlib.sha256((tmp_path / "model.safetensors").read_bytes()).hexdigest()
    assert backbone.spec == InputSpec(32, (0.5, 0.5, 0.25), (0.5, 0.5, 0.2), "squash", "bicubic")
    assert backbone.tag == tmp_path.name
    said = json.loads(json.dumps(backbone.about()))  # as a model's file says it
    for file in tmp_path.iterdir():
        file.unlink()
    empty = empty_backbone(name, 32, said)
    empty.network.load_state_dict(backbone.network.state_dict())
    with torch.inference_mode():
        assert torch.equal(empty.network.eval().features(images), features)


def test_a_network_without_a_head_will_do(tmp_path):
    model = classifier("vit")
    name = saved(model, tmp_path)
    plain = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith("classifier")}
    torch.save(plain, tmp_path / "body.pth")
    whole, body = open_backbone(name), open_backbone(name, str(tmp_path / "body.pth"))
    assert body.imagenet is None and body.tag == "body.pth" and body.sha256 != whole.sha256
    assert all(torch.equal(a, b) for a, b in zip(whole.network.parameters(), body.network.parameters(), strict=True))


def test_several_files_of_weights_have_the_digest_of_their_tensors(tmp_path):
    model = classifier("convnext")
    one, many = saved(model, tmp_path / "one"), saved(model, tmp_path / "many", max_shard_size="20KB")
    assert (tmp_path / "many" / "model.safetensors.index.json").exists()
    whole, backbone = open_backbone(one), open_backbone(many)
    assert backbone.sha256 == digest_of(model.state_dict()) != whole.sha256
    assert all(
        torch.equal(a, b) for a, b in zip(whole.network.parameters(), backbone.network.parameters(), strict=True)
    )
    changed = {**model.state_dict(), "classifier.bias": torch.ones(5)}
    assert digest_of(changed) != backbone.sha256


def test_positions_are_fitted_to_another_size(tmp_path):
    name = saved(classifier("vit"), tmp_path)
    model = classifier("vit")
    images = torch.randn(2, 3, 48, 48)
    backbone = open_backbone(name, size=48)
    backbone.check()
    with torch.inference_mode():
        body = model.vit(images, interpolate_pos_encoding=True).last_hidden_state[:, 0]
        assert relative(backbone.network.features(images), body) <= 1e-5


@pytest.mark.parametrize(
    ("said", "spec"),
    [
        ({"size": 224, "resample": 2}, InputSpec(224, interpolation="bilinear")),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}},
            InputSpec(224, resize="crop", share=224 / 256),
        ),
        (
            {"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": 224, "resample": 3},
            InputSpec(224, interpolation="bicubic", share=224 / 256),
        ),
        (
            {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3},
            InputSpec(224, resize="crop", interpolation="bicubic", share=0.875),
        ),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875, "resample": 3}, InputSpec(384, interpolation="bicubic")),
        ({"size": {"shortest_edge": 224}, "resample": 1}, InputSpec(224, resize="crop", interpolation="lanczos")),
    ],
)  # fmt: skip
def test_its_input_is_what_its_image_processor_does(said, spec):
    colours = {"image_mean": list(spec.mean), "image_std": list(spec.std)}
    assert _spec({**colours, **said}) == spec


@pytest.mark.parametrize(
    "said",
    [
        {"size": {"height": 32, "width": 40}}, {"size": 32, "do_rescale": False}, {"size": 32, "resample": 4},
        {"size": 32, "image_mean": [0.5]}, {"size": "large"}, {},
    ],
)  # fmt: skip
def test_images_that_cannot_be_shown_are_refused(said, tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**COLOURS, **said}))
    with pytest.raises(UserError, match="images cannot be shown to it"):
        input_of(f"hf:{tmp_path}")


def test_folders_that_lack_something_are_one_sentence(tmp_path):
    name = saved(classifier("resnet"), tmp_path, processor=None)
    with pytest.raises(UserError, match=r"it has no preprocessor_config\.json"):
        input_of(name)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    torch.save(classifier("vit").state_dict(), tmp_path / "other.pth")
    with pytest.raises(UserError, match=r"other\.pth' does not hold the weights of hf:.* tensors differ"):
        open_backbone(name, str(tmp_path / "other.pth"))
    (tmp_path / "model.safetensors").rename(tmp_path / "moved.safetensors")
    with pytest.raises(UserError, match="it has no weights"):
        open_backbone(name)
    open_backbone(name, str(tmp_path / "moved.safetensors"))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="no image classifier on a bert"):
        open_backbone(name, str(tmp_path / "moved.safetensors"))
    (tmp_path / "config.json").write_text('{"model_type": "unheard-of"}')
    with pytest.raises(UserError, match="knows no network"):
        open_backbone(name, str(tmp_path / "moved.safetensors"))
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match=r"it has no config\.json"):
        open_backbone(name)
    with pytest.raises(UserError, match="no such folder"):
        input_of(f"hf:{tmp_path / 'absent'}")


def test_no_network_names_the_two_ways_out(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def absent(*args, local_files_only, **options):
        if local_files_only:
            raise hub.errors.LocalEntryNotFoundError("not in the cache")
        raise hub.errors.OfflineModeIsEnabled("offline")

    monkeypatch.setattr(hub, "hf_hub_download", absent)
    with pytest.raises(UserError, match=r"hf:DIRECTORY, or run this once with a network"):
        input_of("hf:facebook/convnext-tiny-224")


def test_a_run_on_one_is_used_without_its_folder(tmp_path):
    name = saved(classifier("vit"), tmp_path / "vit")
    settings = {
        "method": "fedavg", "task": "mini", "rounds": 1, "workers": 0, "diagnostics": False, "model": {"name": name},
        "training": {"epochs": 1, "batch": 8},
        "protocol": {"clients": {"pen": 1, "photo": 1, "print": 1}, "samples": 8},
    }  # fmt: skip
    run = pl.fit(**settings, out=tmp_path / "run")
    digest = hashlib.sha256((tmp_path / "vit" / "model.safetensors").read_bytes()).hexdigest()
    assert (run.config.model.sha256, run.config.model.tag, run.config.size) == (digest, "vit", 32)
    assert run.summary.backbone["name"] == "hf:vit" and "built" not in run.summary.backbone
    shutil.rmtree(tmp_path / "vit")
    images = torch.randint(0, 256, (2, 32, 32, 3), dtype=torch.uint8)
    model = run.model()
    with torch.inference_mode():
        assert see(model, images)[:, 2].amax() > 3 and model(see(model, images)).shape == (2, 10)
    with pytest.raises(UserError, match="no such folder"):
        pl.fit(**settings, out=tmp_path / "again")


BARE = """
import sys
from protolith.errors import UserError
from protolith.models.backbones import open_backbone
try:
    open_backbone(sys.argv[1])
except UserError as error:
    print(error)
"""


def test_a_torchvision_that_does_not_fit_is_one_sentence(tmp_path):
    name = saved(classifier("vit"), tmp_path)
    said = subprocess.run([sys.executable, "-c", BARE, name], capture_output=True, text=True, check=True).stdout
    if not said:
        pytest.skip("the torchvision here fits, or there is none")
    assert "does not fit this torch (operator torchvision::nms does not exist)" in said and said.count("\n") == 1
