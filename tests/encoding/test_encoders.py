"""ONNX Runtime gives PyTorch's numbers, from a graph that is exported once and never believed blindly."""

import sys

import pytest
import torch
from encoding_helpers import make_task

from protolith.encoding import about_encoded, encode_task, encoders
from protolith.models.backbones import PACKAGED, open_backbone
from protolith.models.weights import packaged

NAME, SIZE = "efficientnet-lite0", 48


@pytest.fixture(scope="module")
def backbone():
    if packaged(PACKAGED[NAME].package, PACKAGED[NAME].file) is None:
        pytest.skip(f"the package {PACKAGED[NAME].package} is not installed")
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    return open_backbone(NAME, size=SIZE)


@pytest.fixture(scope="module")
def there(backbone, tmp_path_factory):
    """A cache in which a task is encoded by ONNX Runtime, and what was said."""
    folder, said = tmp_path_factory.mktemp("cache"), []
    return folder, encode_task(make_task(size=SIZE), backbone, cache=folder, progress=said.append), said


def graphs(folder):
    return {file.name: file.stat().st_mtime_ns for file in (folder / "encoded").glob("*.onnx")}


def features(backbone, task):
    return encoders.by_torch(backbone, "features").encode(task.domains[0].train.images)


def test_onnx_runtime_gives_pytorchs_numbers(backbone, there):
    _, found, said = there
    assert said[0] == f"{NAME} is exported for ONNX Runtime, once" and "by ONNX Runtime" in said[1]
    assert about_encoded(found.file)["encoder"].startswith("ONNX Runtime") and "ONNX Runtime" in found.notes[-1]
    difference = found.domains[0].train.images[:, 0] - features(backbone, make_task(size=SIZE))
    assert 0 < float(difference.abs().max()) <= 1e-4


def test_maps_are_pytorchs_to_the_last_digit_but_one(backbone, there):
    found = encode_task(make_task(size=SIZE), backbone, "maps", cache=there[0]).domains[0].test.images[:, 0].float()
    expected = encoders.by_torch(backbone, "maps").encode(make_task(size=SIZE).domains[0].test.images)
    assert "ONNX Runtime" in encode_task(make_task(size=SIZE), backbone, "maps", cache=there[0]).notes[-1]
    assert float((found - expected).abs().max()) <= 1e-3 * float(expected.abs().max())


def test_a_second_task_is_not_exported_again(backbone, there):
    folder, before, said = there[0], graphs(there[0]), []
    encode_task(make_task(size=SIZE, seed=1), backbone, cache=folder, progress=said.append)
    assert before and graphs(folder) == before and not any("exported" in line for line in said)


@pytest.mark.parametrize("damage", ["cut", "another network"])
def test_a_graph_that_is_not_the_network_is_made_anew(backbone, there, damage):
    folder, said = there[0], []
    (file,) = [path for path in (folder / "encoded").glob("*.onnx") if path.stat().st_size > 5e6]
    if damage == "cut":
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    else:
        other = open_backbone(NAME, size=SIZE)
        with torch.no_grad():
            other.network.last.conv.weight.mul_(1.01)
        assert encoders._exported(encoders._Graph(other, "features").eval(), SIZE, file) is None
    task = make_task(size=SIZE, seed=2 if damage == "cut" else 3)
    found = encode_task(task, backbone, cache=folder, progress=said.append)
    assert said[0] == f"{NAME} is exported for ONNX Runtime, once" and "by ONNX Runtime" in said[1]
    assert float((found.domains[0].train.images[:, 0] - features(backbone, task)).abs().max()) <= 1e-4


def test_without_the_runtime_pytorch_encodes(backbone, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    task = make_task(size=SIZE)
    found = encode_task(task, backbone, cache=tmp_path)
    assert about_encoded(found.file)["encoder"] == f"PyTorch {torch.__version__}" and graphs(tmp_path) == {}
    assert torch.allclose(found.domains[0].train.images[:, 0], features(backbone, task), atol=1e-5)


def test_a_network_that_cannot_be_exported_is_encoded_by_pytorch(backbone, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(torch.onnx, "export", refuse)
    said = []
    found = encode_task(make_task(size=SIZE), backbone, cache=tmp_path, progress=said.append)
    reason = "(RuntimeError: no such operator), so PyTorch encodes"
    assert said[1] == f"{NAME} cannot be exported for ONNX Runtime {reason}"
    assert about_encoded(found.file)["encoder"].startswith("PyTorch")


def test_pytorch_gets_its_threads_back(tmp_path, by_torch, monkeypatch):
    from encoding_helpers import tiny

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        monkeypatch.setattr(encoders, "cores", lambda: 3)
        with encoders.all_cores():
            assert torch.get_num_threads() == 3
        encode_task(make_task(), tiny(), cache=tmp_path)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
