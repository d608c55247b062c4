"""FedDyn: the real one, with a gradient and with h on the server."""

import pytest
import torch
from baseline_helpers import (
    Federation,
    batch_of,
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

from protolith.data.protocols import Allocation, Client
from protolith.federation.coordinator import Coordinator, Progress
from protolith.federation.engine import Result
from protolith.federation.rounds import run_round
from protolith.federation.setup import Setup
from protolith.methods.fedavg import is_buffer
from protolith.methods.registry import get_method
from protolith.records import clone, under_prefix, with_prefix


def started(alpha=0.3, with_h=True, **params):
    model = tiny(dtype=torch.float64)
    h = random_weights(dict(model.named_parameters()), 8)
    given = context(
        "feddyn",
        model=model,
        knowledge={"alpha": torch.tensor(alpha, dtype=torch.float64)},
        params=params,
        memory=with_prefix("h", h) if with_h else {},
    )
    client = get_method("feddyn").client(given)
    client.start()
    anchor = clone(dict(model.named_parameters()))
    with torch.no_grad():
        for parameter, new in zip(model.parameters(), random_weights(anchor, 5).values(), strict=True):
            parameter.copy_(new)
    return client, model, anchor, h if with_h else {name: torch.zeros_like(t) for name, t in h.items()}


@pytest.mark.parametrize("with_h", [False, True])
def test_the_objective_in_both_of_its_forms(with_h):
    client, model, anchor, h = started(with_h=with_h)
    batch = batch_of(split(9))
    value = client.loss(batch, client.forward(batch))["dyn"].item()
    first = second = constant = 0.0
    for name, parameter in model.named_parameters():
        triples = zip(
            parameter.flatten().tolist(), anchor[name].flatten().tolist(), h[name].flatten().tolist(), strict=True
        )
        for theta, theta_t, h_v in triples:
            first += 0.3 * theta * (h_v - theta_t) + 0.15 * theta**2  # α⟨θ, h − θ^t⟩ + (α/2)‖θ‖²
            second += 0.3 * h_v * theta + 0.15 * (theta - theta_t) ** 2  # −⟨∇̂, θ⟩ + (α/2)‖θ − θ^t‖², ∇̂ = −α h
            constant += 0.15 * theta_t**2
    assert value == pytest.approx(second, rel=1e-9)
    assert value == pytest.approx(first + constant, rel=1e-9)


def test_the_regulariser_has_a_gradient_on_the_trained_network():
    """In public code it is computed on the global network's parameters, so that FedDyn is FedAvg."""
    client, model, anchor, h = started()
    batch = batch_of(split(9))
    client.loss(batch, client.forward(batch))["dyn"].backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 0.3 * (h[name] + parameter.detach() - anchor[name]))
        assert parameter.grad.abs().sum() > 0


def test_h_grows_by_the_clients_move():
    client, model, anchor, h = started()
    new = under_prefix("h", client.remember())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(new[name], h[name] + parameter.detach() - anchor[name])


def test_clipping():
    client, model, _, _ = started(clip=0.5)
    batch = batch_of(split(9))
    client.loss(batch, client.forward(batch))["dyn"].backward()
    client.adjust_gradients()
    assert torch.stack([p.grad.norm() for p in model.parameters()]).norm().item() == pytest.approx(0.5, rel=1e-4)


def test_the_server_over_rounds_with_partial_participation():
    """θ̄ uniform, buffers by images, h the mean over all clients; against loops that keep every h_m."""
    s = server("feddyn", (4, 10, 6), model=tiny(dtype=torch.float64))
    names = [name for name in s.weights if not is_buffer(name)]
    h = {m: {name: torch.zeros_like(s.weights[name]) for name in names} for m in range(3)}
    for round_, clients in enumerate([[0, 1, 2], [1], [0, 2], [2]]):
        sent = s.broadcast(clients[0]).weights
        uploads = uploads_for(s, clients, seed=round_)
        s.aggregate(iter(uploads))
        for upload in uploads:
            for name in names:
                h[upload.client][name] = h[upload.client][name] + upload.weights[name] - sent[name]
        uniform = plain_mean([u.weights for u in uploads], [1.0] * len(uploads))
        by_images = plain_mean([u.weights for u in uploads], [u.count for u in uploads])
        expected = {name: by_images[name] if is_buffer(name) else uniform[name] for name in s.weights}
        same(s.weights, expected)
        cloud = {n: t + (sum(h[m][n] for m in range(3)) / 3 if n in names else 0) for n, t in expected.items()}
        same(s.broadcast(0).weights, cloud)
        assert s.broadcast(0).weights is s.broadcast(1).weights  # one record for all clients


def test_the_server_tracks_what_the_clients_remember():
    federation = Federation("feddyn", [split(20), split(9)], alpha=0.1)
    for clients in ([0], [0, 1], [1], [0, 1]):
        federation.step(clients)
    for name, mean in under_prefix("h", federation.server.extra).items():
        total = sum(federation.memories[m][f"h/{name}"] for m in range(2))
        torch.testing.assert_close(mean, total / 2, rtol=1e-4, atol=1e-6)


def test_a_rejected_upload_leaves_the_clients_h_as_it_was(tmp_path):
    """Otherwise the server's h would no longer be the mean of what the clients remember."""
    s = server("feddyn", (4, 10))
    good, bad = uploads_for(s, [0, 1])
    bad.weights["conv.bias"].fill_(float("nan"))
    clients = tuple(Client(i, name, "d", torch.arange(4)) for i, name in enumerate("ab"))

    class Engine:
        def train(self, jobs, broadcast):
            yield from (Result(good, True), Result(bad, True))

    coordinator = Coordinator(Setup(rounds=20), Allocation(clients, ()), s, Engine(), tmp_path, evaluate_every=99)
    coordinator.resume(s.state(), Progress(round=3, memories={0: 3, 1: 3}))
    metrics = run_round(coordinator)
    assert coordinator.progress.memories == {0: 4, 1: 3}
    assert [fault["client"] for fault in metrics["rejected"]] == ["b"]


@pytest.mark.parametrize("adaptive", [True, False])
def test_alpha_of_a_client(adaptive):
    s = server("feddyn", (4, 10, 6), alpha=0.3, adaptive=adaptive)
    for m, n in enumerate((4, 10, 6)):
        expected = 0.3 / (3 * n / 20) if adaptive else 0.3
        assert s.broadcast(m).knowledge["alpha"].item() == pytest.approx(expected)


def test_it_differs_from_fedavg():
    ends = []
    for method in ("fedavg", "feddyn"):
        federation = Federation(method, [split(20), split(9)])
        federation.step()
        federation.step()
        ends.append(federation.server.weights["conv.weight"])
    assert not torch.allclose(*ends, atol=1e-4)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_on_quadratics_it_comes_closer_to_the_joint_optimum_than_fedavg(monkeypatch, momentum):
    found = toy_distances(monkeypatch, {"fedavg": {}, "feddyn": {"alpha": 0.5}}, momentum=momentum)
    print(f"momentum {momentum}: distance to the joint optimum after 50 rounds {found}")
    assert found["feddyn"] < 0.02 * found["fedavg"]


def test_on_quadratics_with_clients_that_miss_rounds(monkeypatch):
    methods = {"fedavg": {}, "feddyn": {"alpha": 0.5}}
    found = toy_distances(
        monkeypatch, methods, momentum=0.0, rounds=90, participants=lambda r: [r % 3, (r + 1) % 3] if r else None
    )
    print(f"two of three clients a round, 90 rounds: {found}")
    assert found["feddyn"] < 0.1 * found["fedavg"]
