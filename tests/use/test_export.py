import builtins
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from protolith.data.augment import to_input
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.records import read_with_about
from protolith.use.export import export
from protolith.use.predict import Predictor


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    pytest.importorskip("onnxruntime")
    out = tmp_path_factory.mktemp("out") / "model.onnx"
    return out, export(run, "onnx", out)


def test_onnx_says_what_pytorch_says(run, exported):
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported[0]), providers=["CPUExecutionProvider"])
    task, predictor = load_task(run.config.task), Predictor(run)
    images = torch.cat([domain.test.images for domain in task.domains])
    expected = predictor.trained.ask(images)
    inputs = to_input(images, torch.device("cpu")).contiguous().numpy()
    logits, features, looks = session.run(None, {"images": inputs})
    assert np.abs(logits - expected.logits.numpy()).max() < 1e-3
    assert np.abs(features - expected.features.numpy()).max() < 1e-3
    assert np.abs(looks - expected.looks.numpy()).max() < 1e-3
    assert logits.argmax(1).tolist() == expected.logits.argmax(1).tolist()
    assert exported[1].difference < 1e-3


def test_onnx_metadata_is_enough_to_use_it(run, exported):
    import onnx
    import onnxruntime

    found = {entry.key: entry.value for entry in onnx.load(exported[0]).metadata_props}
    assert json.loads(found["protolith.classes"]) == ["beam", "post"]
    about = json.loads(found["protolith.input"])
    assert about["size"] == 32 and len(about["mean"]) == len(about["std"]) == 3
    judge = Predictor(run).familiarity
    assert np.allclose(json.loads(found["protolith.prototypes"]), judge.prototypes.numpy(), rtol=1e-5, atol=1e-7)
    assert json.loads(found["protolith.familiarity"])["threshold"] == pytest.approx(judge.threshold())
    # Familiarity as a user of the file would compute it, by the rule that it carries.
    part = {
        name: np.array(json.loads(found[f"protolith.{name}"]))
        for name in ("prototypes", "counts", "whitening", "surfaces", "surface_whitening", "scales")
    }
    images = load_task(run.config.task).domains[0].test.images[:6]
    inputs = to_input(images, torch.device("cpu")).contiguous().numpy()
    session = onnxruntime.InferenceSession(exported[0])
    expected = judge.distances(Predictor(run).trained.ask(images).looks)
    for row, distance in zip(session.run(["looks"], {"images": inputs})[0], expected, strict=True):
        f, s = row[:-7], row[-7:]
        points = part["prototypes"][part["counts"] > 0]
        a = min(np.linalg.norm((f - point) @ part["whitening"]) for point in points)
        b = min(
            np.linalg.norm((s - mean) @ white)
            for mean, white in zip(part["surfaces"], part["surface_whitening"], strict=True)
        )
        assert max(a / part["scales"][0], b / part["scales"][1]) == pytest.approx(float(distance), rel=1e-3)


def test_the_card_is_true_to_the_run(run, exported):
    card = (exported[0].parent / "MODEL_CARD.md").read_text()
    for site, accuracy in run.summary.accuracy.items():
        assert f"| {site} | {accuracy:.1f} |" in card
    worst = min(run.summary.accuracy, key=run.summary.accuracy.get)
    assert f"The hardest site was {worst}" in card and "no logit differs by more than" in card
    assert run.summary.rule in card and "Protocol `sites`" in card
    assert str(run.path.parent) not in card and run.config.task not in card


def test_safetensors_comes_with_an_example_that_works(run, tmp_path, sites):
    found = export(run, "safetensors", tmp_path / "model.safetensors")
    record, about = read_with_about(tmp_path / "model.safetensors")
    assert about["classes"] == ["beam", "post"] and "familiarity/prototypes" in record and "head.weight" in record
    example = tmp_path / "model_example.py"
    assert example in found.files and len(example.read_text().strip().splitlines()) <= 20
    image = next((sites / "east" / "beam").iterdir())
    said = subprocess.run([sys.executable, example, image], capture_output=True, text=True, check=True).stdout.strip()
    assert said == next(iter(Predictor(run).files([image]))).label


def test_what_cannot_be_exported(run, tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"unknown format in --to 'onxx'\. Did you mean 'onnx'"):
        export(run, "onxx", tmp_path / "m")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        export(run, "safetensors", tmp_path / "file" / "m.safetensors")
    real = builtins.__import__

    def without(name, *rest):
        if name == "onnxruntime":
            raise ImportError("no", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UserError, match=r"needs the package onnxruntime: install it with pip install 'protolith\[onnx\]'"
    ):
        export(run, "onnx", tmp_path / "m.onnx")
