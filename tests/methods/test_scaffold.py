"""SCAFFOLD: control variates that are mean gradients, with and without momentum."""

import pytest
import torch
from baseline_helpers import (
    QUICK,
    Federation,
    context,
    plain_mean,
    random_weights,
    same,
    server,
    split,
    tiny,
    toy_distances,
    uploads_for,
)

from protolith.methods.fedavg import is_buffer
from protolith.methods.registry import get_method
from protolith.methods.scaffold import path
from protolith.records import clone, under_prefix, with_prefix


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_the_path_is_what_sgd_goes_with_unit_gradients(momentum, steps):
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1, momentum=momentum)
    for _ in range(steps):
        x.grad = torch.ones_like(x)
        optimizer.step()
    assert path(steps, 0.1, momentum) == pytest.approx(-x.item(), rel=1e-12)


def test_without_momentum_the_path_is_the_papers():
    assert path(7, 0.1, 0.0) == pytest.approx(0.7)


def test_gradients_are_corrected():
    model = tiny(dtype=torch.float64)
    parameters = dict(model.named_parameters())
    c, own = random_weights(parameters, 1), random_weights(parameters, 2)
    client = get_method("scaffold").client(
        context("scaffold", model=model, knowledge=with_prefix("c", c), memory=with_prefix("c", own))
    )
    client.start()
    gradients = random_weights(parameters, 3)
    for name, parameter in parameters.items():
        parameter.grad = gradients[name].clone()
    client.adjust_gradients()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter.grad, gradients[name] + c[name] - own[name])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_c_i_becomes_the_mean_of_the_rounds_gradients(monkeypatch, momentum, weight_decay):
    """Whatever c and c_i were: weighted by how much each gradient moved the model."""
    model = tiny()
    parameters = dict(model.named_parameters())
    c, own = random_weights(parameters, 1), random_weights(parameters, 2)
    training = QUICK.model_copy(update={"momentum": momentum, "weight_decay": weight_decay, "lr": 0.001})
    given = context(
        "scaffold", model=model, training=training, knowledge=with_prefix("c", c), memory=with_prefix("c", own)
    )
    client = get_method("scaffold").client(given)
    seen, adjust = [], client.adjust_gradients

    def watch():
        seen.append({name: p.grad.double() + weight_decay * p.detach().double() for name, p in parameters.items()})
        adjust()

    monkeypatch.setattr(client, "adjust_gradients", watch)
    upload, memory = client.update()
    steps = len(seen)
    shares = [(1 - momentum ** (steps - j)) for j in range(steps)]  # a gradient acts in all later steps too
    expected = plain_mean(seen, shares)
    same(under_prefix("c", memory), expected, 2e-3)
    change = {name: expected[name] - own[name] for name in expected}
    same(under_prefix("change", upload.knowledge), change, 2e-3)


@pytest.mark.parametrize("average", ["images", "equal"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_the_server_over_rounds_with_partial_participation(average, server_lr):
    """c is the weighted mean of all clients' c_i, kept here in a dictionary."""
    counts = (4, 10, 6)
    s = server("scaffold", counts, model=tiny(dtype=torch.float64), average=average, server_lr=server_lr)
    names = [name for name in s.weights if not is_buffer(name)]
    all_weights = counts if average == "images" else (1, 1, 1)
    c_i = {m: {name: torch.zeros_like(s.weights[name]) for name in names} for m in range(3)}
    for round_, clients in enumerate([[0, 1, 2], [1], [0, 2]]):
        before = clone(s.weights)
        changes = {m: random_weights({name: before[name] for name in names}, 50 + 10 * round_ + m) for m in clients}
        uploads = uploads_for(s, clients, round_, lambda m, changes=changes: with_prefix("change", changes[m]))
        light = s.aggregate(iter(uploads))
        assert all(not upload.knowledge for upload in light)
        for m in clients:
            c_i[m] = {name: c_i[m][name] + changes[m][name] for name in names}
        mean = plain_mean([u.weights for u in uploads], [all_weights[m] for m in clients])
        for name, tensor in s.weights.items():
            expected = mean[name] if is_buffer(name) else before[name] + server_lr * (mean[name] - before[name])
            torch.testing.assert_close(tensor.double(), expected.double())
        same(under_prefix("c", s.broadcast(0).knowledge), plain_mean([c_i[m] for m in range(3)], all_weights))
        assert not s.knowledge  # an exported model has no use for c


def test_the_server_tracks_what_the_clients_remember():
    federation = Federation("scaffold", [split(20), split(9)])
    for clients in ([0], [0, 1], [1], [0, 1]):
        federation.step(clients)
    for name, c in under_prefix("c", federation.server.extra).items():
        expected = (20 * federation.memories[0][f"c/{name}"] + 9 * federation.memories[1][f"c/{name}"]) / 29
        torch.testing.assert_close(c, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_quadratics_it_comes_closer_to_the_joint_optimum_than_fedavg(monkeypatch, momentum):
    found = toy_distances(monkeypatch, {"fedavg": {}, "scaffold": {}}, momentum=momentum)
    print(f"momentum {momentum}: distance to the joint optimum after 50 rounds {found}")
    assert found["scaffold"] < 0.02 * found["fedavg"]


def test_on_quadratics_with_clients_that_miss_rounds(monkeypatch):
    methods = {"fedavg": {}, "scaffold": {}}
    found = toy_distances(
        monkeypatch, methods, momentum=0.0, rounds=90, participants=lambda r: [r % 3, (r + 1) % 3] if r else None
    )
    print(f"two of three clients a round, 90 rounds: {found}")
    assert found["scaffold"] < found["fedavg"]
