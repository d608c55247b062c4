"""On a device that has no float64 every method trains, a whole run ends, and its model is used."""

import pytest
import torch
from no_float64 import MPS, WithoutFloat64

from protolith.evaluation.accuracy import Chunk
from protolith.evaluation.measures import to_plain
from protolith.federation import local_update
from protolith.federation.local_update import Workplace
from protolith.methods.registry import all_methods
from protolith.runs import runner
from protolith.runs.config import complete_for, resolve
from protolith.runs.diagnostics import read_tests
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use import familiarity, trained
from protolith.use.predict import Predictor

PASS = {"proto_pass": "eval_pass"}
OPTIONS = {
    "fpl, clipped prototypes": {"method": "fpl", "params": PASS, "privacy": {"clip": 1.0}},
    "fpl, noisy prototypes": {"method": "fpl", "params": PASS, "privacy": {"clip": 1.0, "noise": 0.5}},
    "fpl, one batch's classes weighed": {"method": "fpl", "training": {"class_weights": True}},
    "i2pfl, augmented prototypes of an epoch": {"method": "i2pfl", "params": {"scope": "epoch", "gamma": "sample"}},
    "i2pfl, mixed images": {"method": "i2pfl", "params": {"mixup": "input"}},
    "i2pfl, clusters": {"method": "i2pfl", "params": {"aggregation": "cluster"}},
    "fedplvm, the last epoch's features": {"method": "fedplvm", "params": {"proto_pass": "last_epoch_train"}},
    "fedapc, plain images": {"method": "fedapc", "params": {"augment": False}},
    "fedga, the loss": {"method": "fedga", "params": {"metric": "loss"}},
    "scaffold, exchanged styles": {"method": "scaffold", "training": {"style_exchange": 0.5}},
    "fedproto-original, nearest": {"method": "fedproto-original", "params": {"prediction": "nearest"}},
}
CASES = {**{name: {"method": name} for name in sorted(all_methods())}, **OPTIONS}


@pytest.fixture(scope="module")
def task():
    from protolith.data.tasks import load_task

    return load_task("mini")


def workplace(task, **values):
    small = {"task": "mini", "rounds": 4, "workers": 0, "model": {"width": 2}, "device": "cpu"}
    protocol = {"clients": {"pen": 1, "photo": 1}, "samples": 10}
    training = {"epochs": 2, "batch": 5, **values.pop("training", {})}
    config = resolve([{**small, "protocol": protocol, "training": training, **values}])
    return Workplace(complete_for(config, task), task)


@pytest.mark.parametrize("case", CASES)
def test_a_client_trains_and_is_tested_on_a_device_without_float64(case, task):
    """Two rounds, so that every loss term is there; what comes of them is what comes on the CPU, to rounding."""
    on_cpu, on_device = workplace(task, **CASES[case]), workplace(task, **CASES[case])
    on_device.device = MPS
    device, server, memories, chunk = WithoutFloat64(), on_cpu.server(), [{}, {}], Chunk(0, 0, 16)
    for round_ in range(2):
        server.begin(round_)
        messages = [server.broadcast(client) for client in range(2)]
        expected = [on_cpu.update(m, round_, messages[m], memories[m]) for m in range(2)]
        with device:
            found = [on_device.update(m, round_, messages[m], memories[m]) for m in range(2)]
            assert all(device.holds(parameter) for parameter in on_device.model.parameters())
            sent = [t for u, memory in found for t in (*u.weights.values(), *u.knowledge.values(), *memory.values())]
            assert not any(device.holds(tensor) for tensor in sent)
            counts = on_device.count(server.weights, server.knowledge, chunk)
            assert not any(device.holds(tensor) for part in counts.values() for tensor in part.values())
        assert to_plain(counts) == to_plain(on_cpu.count(server.weights, server.knowledge, chunk))
        for (upload, memory), (same, kept) in zip(found, expected, strict=True):
            assert upload.metrics == pytest.approx(same.metrics, rel=1e-4)
            like = {**same.weights, **same.knowledge, **kept}
            for name, tensor in {**upload.weights, **upload.knowledge, **memory}.items():
                torch.testing.assert_close(tensor, like[name], rtol=1e-3, atol=1e-5)
        memories = [memory for _, memory in expected]
        server.aggregate(iter([upload for upload, _ in expected]))


@pytest.fixture
def present(monkeypatch):
    """The machine is taken to have the device."""
    for place in (local_update, runner, trained):
        monkeypatch.setattr(place, "present_device", torch.device)


def run_on(device, path, task, **values):
    return runner.start(workplace(task, **values).setup.model_copy(update={"device": device}), path, Observer())


@pytest.mark.parametrize("case", ["fpl, noisy prototypes", "strata", "fedproto-original, nearest"])
def test_a_whole_run_with_its_diagnostics_on_a_device_without_float64(case, task, tmp_path, present):
    """The global model's and the clients' own: what is tested and saved is what comes on the CPU, to rounding."""
    pytest.importorskip("dp_accounting", reason="the extra is not installed") if "noisy" in case else None
    here = run_on("cpu", tmp_path / "cpu", task, **CASES[case])
    with WithoutFloat64():
        there = run_on("mps", tmp_path / "mps", task, **CASES[case])
    assert len(here.metrics()) == 4
    for line, same in zip(there.metrics(), here.metrics(), strict=True):
        assert line.accuracy == pytest.approx(same.accuracy, abs=0.5)
        assert line.loss == pytest.approx(same.loss, rel=1e-2, abs=1e-3)
    tests, like = read_tests(there.path), read_tests(here.path)
    assert (tests.predicted == like.predicted).float().mean() > 0.98 and torch.equal(tests.row, like.row)
    torch.testing.assert_close(tests.confidence, like.confidence, rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(tests.features, like.features, rtol=2e-2, atol=2e-2)
    assert torch.equal(tests.thumbnails, like.thumbnails)


def test_images_are_labelled_and_familiar_on_a_device_without_float64(task, tmp_path, present, monkeypatch):
    run = Run(run_on("cpu", tmp_path / "run", task, method="fpl").path)
    images = torch.cat([domain.test.images[:20] for domain in task.domains])
    expected = Predictor(run)(images)
    (run.path / familiarity.FILE).unlink()
    monkeypatch.setattr(trained, "_device_here", lambda trained_on: MPS)
    with (device := WithoutFloat64()):
        predictor = Predictor(run)
        found = predictor(images)
        assert all(device.holds(parameter) for parameter in predictor.trained.model.parameters())
    assert (run.path / familiarity.FILE).is_file() and predictor.note == ""
    assert torch.equal(found.labels, expected.labels)
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.familiarity, expected.familiarity, rtol=0.0, atol=0.02)


REFUSED = {
    "a conversion": lambda x: x.double(),
    "a conversion by type": lambda x: x.to(torch.float64),
    "a conversion on the way to the CPU": lambda x: x.to("cpu", torch.float64),
    "a conversion to another tensor's kind": lambda x: x.to(torch.zeros(1, dtype=torch.float64)),
    "an accumulator": lambda x: torch.zeros(3, dtype=torch.float64, device=x.device),
    "one of the same device": lambda x: x.new_zeros(3, dtype=torch.float64),
    "a norm": lambda x: torch.linalg.vector_norm(x, dtype=torch.float64),
    "an operand": lambda x: x + torch.zeros(3, dtype=torch.float64),
    "a tensor of numpy's": lambda x: torch.zeros(3, dtype=torch.float64).to(x),
    "a move there": lambda x: torch.zeros(3, dtype=torch.float64).to("mps"),
    "numpy": lambda x: x.numpy(),
}
ALLOWED = {
    "float64 on the CPU": lambda x: x.cpu().double(),
    "float64 on the CPU, moved by name": lambda x: x.to("cpu").to(torch.float64),
    "a rounded move there": lambda x: torch.zeros(3, dtype=torch.float64).float().to("mps"),
    "Python's numbers": lambda x: torch.where(x > 0.5, x * 0.1, 0.0),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("computed", [False, True])
def test_the_stand_in_refuses(what, computed):
    with WithoutFloat64():
        x = torch.ones(3).to(MPS)
        x = torch.nn.Parameter(x) * 2 if computed else x
        with pytest.raises(RuntimeError, match="MPS"):
            REFUSED[what](x.detach())


@pytest.mark.parametrize("what", ALLOWED)
def test_the_stand_in_allows(what):
    with WithoutFloat64():
        ALLOWED[what](torch.ones(3).to(MPS))
