"""Runs on a pretrained backbone: which weights it had is in every file, and others are refused."""

import hashlib
import json
import shutil
import tomllib

import pytest
import torch

import protolith as pl
from protolith import records
from protolith.errors import UserError
from protolith.models.imagenet_resnet import ImageNetResNet18
from protolith.runs import runner
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.card import model_card, resizing
from protolith.use.export import metadata
from protolith.use.trained import open_trained

NAME = "resnet18-imagenet"


def weights_in(path, seed=0):
    """Random weights of the backbone in a file."""
    torch.manual_seed(seed)
    torch.save(ImageNetResNet18().state_dict(), path)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of one round, and the file of its backbone's weights."""
    folder = tmp_path_factory.mktemp("pretrained")
    file = weights_in(folder / "w.pth")
    run = pl.fit(
        method="fedavg", task="mini", rounds=1, workers=0, size=32, out=folder / "run", diagnostics=False,
        model={"name": NAME, "weights": str(file)}, training={"epochs": 1, "batch": 8},
        protocol={"clients": {"pen": 1, "photo": 1, "print": 1}, "samples": 8},
    )  # fmt: skip
    return run, file


def test_which_weights_it_had_is_in_every_file(trained):
    run, file = trained
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    said = tomllib.loads((run.path / "config.toml").read_text())
    assert (said["model"]["sha256"], said["model"]["tag"], said["size"]) == (digest, "w.pth", 32)
    assert said["model"]["input"]["resize"] == "crop" and said["model"]["input"]["share"] == 0.875
    backbone = json.loads((run.path / "summary.json").read_text())["backbone"]
    _, about = records.read_with_about(run.path / "model.safetensors")
    assert backbone == about["backbone"] and about["input"] == backbone["input"]
    assert (backbone["name"], backbone["tag"], backbone["sha256"]) == (NAME, "w.pth", digest)
    assert backbone["input"] == {**said["model"]["input"], "size": 32}


def test_card_and_metadata_say_it_too(trained):
    run, _ = trained
    opened = open_trained(Run.open(run.path))
    digest, spec = opened.config.model.sha256, opened.saved.spec
    card, said = model_card(opened, None, "m.onnx", None), metadata(opened, None)
    assert f"pretrained backbone {NAME} (weights w.pth, SHA-256 {digest})" in card
    assert resizing(spec) in card and "the middle square, whose side is 87.5 % of the shorter one" in resizing(spec)
    assert said["backbone"]["sha256"] == digest and said["input"]["fit"] == spec.plain()
    assert resizing(spec) in said["input"]["resize"]
    assert said["input"]["mean"] == list(spec.mean)


def test_other_weights_are_refused_on_resume(trained, tmp_path):
    run, file = trained
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "summary.json").unlink()
    before = file.read_bytes()
    weights_in(file, seed=1)
    try:
        with pytest.raises(UserError, match="not those that the run began with: SHA-256"):
            runner.resume(copy, Observer())
        file.unlink()
        with pytest.raises(UserError, match="cannot be read"):
            runner.resume(copy, Observer())
    finally:
        file.write_bytes(before)
    runner.resume(copy, Observer())
    assert (copy / "summary.json").exists()


def test_a_model_from_other_weights_is_refused_by_predict(trained, tmp_path):
    run, _ = trained
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    directory = Run.open(copy)
    directory.model()
    record, about = records.read_with_about(copy / "model.safetensors")
    about["backbone"]["sha256"] = "0" * 64
    records.write(copy / "model.safetensors", records.clone(record), about=about)
    with pytest.raises(UserError, match="trained from other weights of resnet18-imagenet than the run began with"):
        directory.model()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "safetensors"])
def test_what_is_exported_knows_its_backbone_and_its_input(trained, tmp_path, to):
    import subprocess
    import sys

    from PIL import Image

    from protolith.use.export import export

    run, _ = trained
    out = tmp_path / f"m.{to}"
    export(Run.open(run.path), to, out)
    if to == "onnx":
        onnx = pytest.importorskip("onnx")
        said = {entry.key: entry.value for entry in onnx.load(out).metadata_props}
        assert json.loads(said["protolith.backbone"])["tag"] == "w.pth"
        assert json.loads(said["protolith.input"])["fit"]["resize"] == "crop"
        return
    pixels = torch.randint(0, 256, (60, 90, 3), dtype=torch.uint8).numpy()
    Image.fromarray(pixels).save(tmp_path / "one.png")
    found = subprocess.run(
        [sys.executable, str(tmp_path / "m_example.py"), str(tmp_path / "one.png")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == next(run.predictor().files([tmp_path / "one.png"])).label
