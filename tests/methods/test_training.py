"""What all methods share in local training: the learning rate over the rounds, and class weights."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import protolith as pl
from protolith.data.domain import Split
from protolith.data.protocols import Protocol, allocate, data_of
from protolith.data.tasks import load_task
from protolith.methods.base import Context, Terms, Training
from protolith.methods.fedavg import class_weights
from protolith.methods.sgd import SGD


def test_the_rate_of_each_round():
    assert [Training(lr=0.3).rate(r, 4) for r in range(4)] == [0.3] * 4  # as in the papers, to the last bit
    cosine = Training(lr=0.2, schedule="cosine")
    assert [cosine.rate(r, 4) for r in range(4)] == pytest.approx(
        [0.1 * (1 + math.cos(math.pi * r / 4)) for r in range(4)]
    )
    warm = Training(lr=0.4, schedule="cosine", warmup=3)
    assert [warm.rate(r, 13) for r in range(4)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert 0 < warm.rate(12, 13) < 0.02
    assert Training(lr=0.4, warmup=9).rate(4, 5) == pytest.approx(0.2)


def test_class_weights_make_held_classes_count_alike():
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 2, 2])
    context = Context.__new__(Context)
    context.data = Split(torch.zeros(8, 4, 4, 3, dtype=torch.uint8), labels)
    context.classes, context.device = 4, torch.device("cpu")
    weights = class_weights(context)
    assert weights.tolist() == pytest.approx([8 / 12, 0.0, 2.0, 0.0])
    logits = torch.randn(8, 4, dtype=torch.float64)
    each = F.cross_entropy(logits, labels, reduction="none")
    balanced = (each[:6].mean() + each[6:].mean()) / 2
    assert float(F.cross_entropy(logits, labels, weight=weights.double())) == pytest.approx(float(balanced))


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fpl"])
def test_schedules_and_weights_change_training_and_repeat(tiny, tmp_path, method):
    training = {**tiny["training"], "schedule": "cosine", "warmup": 1, "class_weights": True}
    settings = {**tiny, "rounds": 2}
    plain = pl.fit(method=method, out=tmp_path / "plain", **settings)
    runs = [pl.fit(method=method, out=tmp_path / name, **{**settings, "training": training}) for name in "ab"]
    files = [(run.path / "model.safetensors").read_bytes() for run in (plain, *runs)]
    assert files[1] == files[2] and files[0] != files[1]


def test_a_pool_holds_what_the_clients_held():
    task = load_task("mini")
    protocol = Protocol(clients={"pen": 2, "street": 1}, samples=24)
    clients = allocate(task, protocol, 0).clients
    (pool,) = allocate(task, protocol.model_copy(update={"pool": True}), 0).clients
    held = data_of(task, pool)
    parts = [data_of(task, client) for client in clients]
    assert len(held) == 72
    ours, theirs = (
        sorted(map(tuple, images.flatten(1)[:, :200].tolist()))
        for images in (held.images, torch.cat([part.images for part in parts]))
    )
    assert ours == theirs
    assert sorted(held.labels.tolist()) == sorted(torch.cat([part.labels for part in parts]).tolist())


def test_a_pool_trains_on_workers_too(tiny, tmp_path):
    settings = {**tiny, "rounds": 1, "protocol": {**tiny["protocol"], "pool": True}}
    one = pl.fit(out=tmp_path / "one", **settings)
    two = pl.fit(out=tmp_path / "two", **{**settings, "workers": 1})
    assert one.rounds[0].clients == 1 and set(one.summary.accuracy) == {"pen", "photo", "print", "street"}
    assert (one.path / "model.safetensors").read_bytes() == (two.path / "model.safetensors").read_bytes()


def trained_by(kind, steps=5):
    g = torch.Generator().manual_seed(1)
    parameters = [nn.Parameter(torch.randn(5, 3, generator=g)), nn.Parameter(torch.randn(4, generator=g))]
    optimizer = kind(parameters, lr=0.1, momentum=0.9, weight_decay=0.01, fused=True)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.stack([(p * torch.randn(p.shape, generator=g)).sin().sum() for p in parameters]).sum().backward()
        optimizer.step()
    return parameters


def test_sgd_is_torchs_to_the_last_bit():
    ours, torchs = trained_by(SGD), trained_by(torch.optim.SGD)
    assert all(torch.equal(a, b) for a, b in zip(ours, torchs, strict=True))
    assert not torch.equal(ours[0], trained_by(SGD, steps=4)[0])


def test_a_term_that_some_steps_have_is_its_mean_over_these_steps():
    terms = Terms()
    for step in ({"ce": 1.0, "align": 4.0}, {"ce": 2.0}, {"ce": 6.0}, {"ce": 3.0, "align": 2.0}):
        terms.add({name: torch.tensor(value) for name, value in step.items()})
    assert terms.means() == {"ce": 3.0, "align": 3.0} and terms.steps == 4
