"""Runs on a frozen backbone: what travels, what stands still, the same bytes everywhere, and what is refused."""

import hashlib
import json

import pytest
import torch

import protolith as pl
from protolith import records
from protolith.data.tasks import load_task
from protolith.errors import Interrupted, UserError
from protolith.federation.frozen import trained_on
from protolith.federation.local_update import Workplace
from protolith.models.backbones import open_backbone
from protolith.models.packaged import PACKAGED
from protolith.models.saved import open_model
from protolith.models.spec import see
from protolith.models.weights import packaged
from protolith.runs import runner
from protolith.runs.config import complete_for, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer
from protolith.use.trained import open_trained

NAME, SIZE = "efficientnet-lite0", 32


@pytest.fixture(autouse=True)
def _weights():
    if packaged(PACKAGED[NAME].package, PACKAGED[NAME].file) is None:
        pytest.skip(f"the package {PACKAGED[NAME].package} is not installed")


def settings(tune="head", **more):
    model = {"name": NAME, "tune": tune, **more.pop("model", {})}
    training = {"epochs": 1, "batch": 8, **more.pop("training", {})}
    return {
        "task": "mini", "size": SIZE, "rounds": 2, "workers": 0, "model": model, "training": training,
        "protocol": {"clients": {"pen": 2, "photo": 1, "print": 1}, "samples": 12}, **more,
    }  # fmt: skip


def digests(path):
    files = sorted(file for file in path.rglob("*.safetensors") if file.parent.name != "checkpoint")
    return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def lines(path):
    return [{**json.loads(line), "seconds": 0} for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("tune", ["head", "last"])
def test_what_is_frozen_stays_bitwise_and_never_travels(tmp_path, tune):
    run = pl.fit(method="fedavg", out=tmp_path / "run", **settings(tune, rounds=3, diagnostics=False))
    workplace = Workplace(run_config(run.path), load_task("mini"))
    trained = sum(tensor.nbytes for tensor in workplace.initial.values())
    assert all(line["bytes_up"] == 4 * trained for line in lines(run.path))
    state = records.read(next((run.path / "checkpoint").glob("round-000003/*.safetensors")))
    assert {name.removeprefix("weights/") for name in state} == set(workplace.initial)
    whole = records.read(run.path / "model.safetensors")
    held = open_backbone(NAME, size=SIZE).network.state_dict()
    frozen = [name for name in held if f"backbone.{name}" not in workplace.initial]
    assert len(held) - len(frozen) == len(workplace.initial) - 2 and len(frozen) > 200
    assert all(torch.equal(whole[f"backbone.{name}"], held[name]) for name in frozen)
    if tune == "last":
        assert any(not torch.equal(whole[f"backbone.{name}"], held[name]) for name in set(held) - set(frozen))


def run_config(path):
    return RunDirectory.open(path).config()


def test_the_saved_model_says_of_images_what_the_run_said_of_features(tmp_path):
    run = pl.fit(method="fedavg", out=tmp_path / "run", **settings(diagnostics=False))
    config, task = run_config(run.path), load_task("mini", size=SIZE, fit=resolve([settings()]).model.fit)
    encoded = trained_on(config, task, lambda text: None)
    saved = open_model(run.path / "model.safetensors")
    workplace = Workplace(config, encoded)
    record = records.read(run.path / "model.safetensors")
    weights = {name: record[name] for name in workplace.initial}
    workplace.model.load_state_dict(weights)
    images, features = task.domains[0].test.images[:20], encoded.domains[0].test.images[:20]
    with torch.inference_mode():
        expected = workplace.model.eval()(see(workplace.model, features))
        found = saved.model(see(saved.model, images))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "more",
    [
        {"method": "fpl"},
        {"method": "strata", "model": {"views": 2}},
        {"method": "fedavg", "tune": "last"},
    ],
)
def test_any_number_of_workers_gives_the_same_bytes(tmp_path, more):
    paths = []
    for workers in (0, 2):
        asked = settings(**{**more, "workers": workers})
        paths.append(pl.fit(out=tmp_path / str(workers), **asked).path)
    assert digests(paths[0]) == digests(paths[1]) and lines(paths[0]) == lines(paths[1])


class Stop(Observer):
    """Somebody who presses Ctrl-C after the second round."""

    def round_done(self, metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_with_the_same_bytes(tmp_path):
    asked = settings(rounds=3, method="i2pfl")
    whole = pl.fit(out=tmp_path / "whole", **asked).path
    with pytest.raises(Interrupted):
        runner.start(resolve([asked]), tmp_path / "part", Stop())
    runner.resume(tmp_path / "part", Observer())
    assert digests(whole) == digests(tmp_path / "part")
    assert lines(whole) == lines(tmp_path / "part")


def test_clients_own_models_hold_what_was_trained_and_open_whole(tmp_path):
    run = pl.fit(method="solo", out=tmp_path / "run", **settings(diagnostics=False))
    file = next((run.path / "models").glob("*.safetensors"))
    assert set(records.read(file)) == {"head.weight", "head.bias"}
    logits = open_model(file).model(torch.zeros(1, 3, SIZE, SIZE))
    assert logits.shape == (1, 10) and bool(torch.isfinite(logits).all())


def test_a_head_is_where_training_all_of_it_begins(tmp_path):
    first = pl.fit(method="fedavg", out=tmp_path / "head", **settings(diagnostics=False))
    file = str(first.path / "model.safetensors")
    then = pl.fit(method="fedavg", out=tmp_path / "all", init=file, **settings("all", rounds=1, diagnostics=False))
    summary = json.loads((then.path / "summary.json").read_text())
    assert summary["init"]["kept"] + 49 >= summary["init"]["of"] and not summary["init"]["drawn"]
    again = pl.fit(method="fedavg", out=tmp_path / "more", init=file, **settings(rounds=1, diagnostics=False))
    assert json.loads((again.path / "summary.json").read_text())["init"]["kept"] == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"model": {"name": "resnet10", "tune": "head"}}, "needs a pretrained backbone"),
        ({"method": "fpl", "model": {"projection": 0}}, "FPL's losses act on features"),
        ({"method": "strata", "training": {"style_exchange": 0.5}}, "before they could be re-coloured"),
        ({"method": "i2pfl", "params": {"mixup": "input"}}, "mixes images"),
        ({"method": "fedcode"}, "style encoder"),
        ({"model": {"tune": "tail"}}, "model.tune"),
    ],
)
def test_what_cannot_be_is_one_sentence_before_images_are_encoded(tmp_path, more, said):
    with pytest.raises(UserError, match=said) as refused:
        pl.fit(out=tmp_path / "run", **settings(**more))
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_backbone_learns_more_slowly_than_what_is_above_it():
    config = resolve([settings("all", training={"lr": 0.2, "below": 0.05})])
    task = load_task("mini", size=SIZE)
    workplace = Workplace(complete_for(config, task), task)
    server = workplace.server()
    client = workplace.method.client(workplace.context(0, 0, server.broadcast(0), {}))
    groups = client.optimizer(list(workplace.model.parameters())).param_groups
    assert [group["lr"] for group in groups] == [0.2, pytest.approx(0.01)]
    assert {id(p) for p in groups[0]["params"]} == {id(p) for p in workplace.model.head.parameters()}


def test_familiarity_takes_the_features_that_are_kept(tmp_path):
    run = pl.fit(method="fedavg", out=tmp_path / "run", **settings(diagnostics=False))
    opened = open_trained(run)
    task = opened.task()
    images, encoded = task.domains[0].test.images[:70], opened.encoded(task).domains[0].test.images[:70]
    passed, kept = opened.ask(images), opened.ask(images, encoded)
    torch.testing.assert_close(kept.looks, passed.looks, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(kept.logits, passed.logits, rtol=1e-3, atol=1e-3)
    last = pl.fit(method="fedavg", out=tmp_path / "last", **settings("last", rounds=1, diagnostics=False))
    assert open_trained(last).encoded(task) is None
