"""FedGA: what aggregation cost a client, and what that does to its weight."""

import pytest
import torch
from baseline_helpers import CLASSES, QUICK, Federation, context, plain_mean, same, server, split, tiny, uploads_for

from protolith.data.augment import to_input
from protolith.data.domain import Split
from protolith.methods.fedga import adjusted
from protolith.methods.registry import get_method


def plain_adjusted(a, costs, step, centre):
    """a_m + (c_m / max |c|) d / M for the clients in `costs`, clipped, with sum one."""
    middle = sum(costs.values()) / len(costs) if centre else 0.0
    shifted = {m: c - middle for m, c in costs.items()}
    largest = max(abs(c) for c in shifted.values())
    if largest == 0:
        return a
    moved = [min(1.0, max(0.0, x + shifted.get(m, 0.0) / largest * step / len(a))) for m, x in enumerate(a)]
    return [x / sum(moved) for x in moved]


@pytest.mark.parametrize("centre", [False, True])
@pytest.mark.parametrize(
    ("a", "costs"),
    [
        ([1 / 3] * 3, {0: 0.2, 1: -0.1, 2: 0.0}),
        ([0.01, 0.09, 0.9], {0: -0.5, 1: 0.2, 2: 0.5}),
        ([0.5, 0.5], {1: 0.3}),
        ([1.0], {0: 0.3}),
        ([0.25] * 4, {0: 0.0, 3: 0.0}),
        ([0.25] * 4, {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1}),
    ],
)
def test_the_adjustment(a, costs, centre):
    clients, values = torch.tensor(list(costs)), torch.tensor(list(costs.values()), dtype=torch.float64)
    found = adjusted(torch.tensor(a, dtype=torch.float64), clients, values, 0.2, centre)
    assert found.tolist() == pytest.approx(plain_adjusted(a, costs, 0.2, centre), rel=1e-12)
    assert float(found.sum()) == pytest.approx(1.0)


def knowledge(costs):
    return lambda m: {"cost": torch.tensor(costs.get(m, 0.0)), "measured": torch.tensor(m in costs)}


def test_the_server_over_rounds_with_partial_participation():
    s = server("fedga", (4, 10, 6), rounds=5)
    a = [1 / 3] * 3
    plan = [([0, 1, 2], {}), ([0, 1, 2], {0: 0.5, 1: -0.25, 2: 0.0}), ([1], {1: 0.1}), ([0, 2], {0: -0.3, 2: 0.2})]
    for round_, (clients, costs) in enumerate(plan):
        s.begin(round_)
        uploads = uploads_for(s, clients, round_, knowledge(costs))
        s.aggregate(iter(uploads))
        same(s.weights, plain_mean([u.weights for u in uploads], [a[m] for m in clients]), 1e-5)
        if costs:
            t = round_  # the cost is of the aggregation one round ago, number t when counted from 1
            costs = {m: float(torch.tensor(c)) for m, c in costs.items()}
            a = plain_adjusted(a, costs, 0.2 - (t - 1) * 0.2 / 5, False)
        assert s.extra["a"].tolist() == pytest.approx(a, rel=1e-9)


def test_the_client_that_lost_from_aggregation_gains_weight():
    s = server("fedga", (4, 10, 6))
    s.begin(1)
    s.aggregate(iter(uploads_for(s, [0, 1, 2], 0, knowledge({0: 0.3, 1: 0.0, 2: -0.2}))))
    a = s.extra["a"].tolist()
    assert a[0] > a[1] > a[2] and sum(a) == pytest.approx(1.0)


def test_a_weight_of_zero_does_not_leave_a_round_without_a_model():
    s = server("fedga", (4, 10))
    s.extra = {"a": torch.tensor([0.0, 1.0], dtype=torch.float64)}
    (upload,) = uploads_for(s, [0], 0, knowledge({}))
    s.aggregate(iter([upload]))
    same(s.weights, plain_mean([upload.weights], [1]))


def plain_measure(model, images, labels, metric):
    model.eval()
    total = 0.0
    for image, label in zip(images, labels.tolist(), strict=True):
        logits = model(to_input(image[None], torch.device("cpu")))[0].detach().double()
        total += -logits.log_softmax(0)[label].item() if metric == "loss" else float(logits.argmax() != label)
    return total / len(labels)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
@pytest.mark.parametrize("size", [1, 7, 10, 29, 150])
def test_what_a_client_measures(metric, size):
    data, model = split(size), tiny()
    given = context("fedga", model=model, data=data, params={"metric": metric}, memory={"before": torch.tensor(0.25)})
    client = get_method("fedga").client(given)
    client.start()
    held = {1: [0], 7: [6], 10: [9], 29: [8, 18, 28], 150: list(range(9, 150, 10))}[size]
    assert torch.equal(client.holdout.labels, data.labels[held])
    rest = [i for i in range(size) if i not in held] or [0]
    assert len(client.data) == len(rest)
    assert torch.equal(client.data.images, data.images[rest])
    after = plain_measure(tiny(), data.images[held], data.labels[held], metric)
    assert client.cost.item() == pytest.approx(after - 0.25, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3, 10, 24, 101])
@pytest.mark.parametrize("holdout", [0.01, 0.1, 0.3, 0.4, 0.5])
def test_the_part_that_was_asked_for_is_set_aside(holdout, size):
    """To the nearest image, at least one, spread evenly, and never trained on."""
    data = Split(split(size).images, torch.arange(size))
    client = get_method("fedga").client(context("fedga", data=data, params={"holdout": holdout}))
    client.start()
    held, rest = client.holdout.labels.tolist(), client.data.labels.tolist()
    assert abs(len(held) - max(1.0, holdout * size)) <= 0.5
    assert sorted(held + rest) == list(range(size)) and rest
    gaps = [b - a for a, b in zip([-1, *held], held, strict=False)]
    assert max(gaps) - min(gaps) <= 1


def test_cost_is_the_new_global_model_against_the_own_local_one():
    """Two rounds, the second with the client absent in between: after − before on the same images."""
    federation = Federation("fedga", [split(30, 1), split(40, 2)], metric="loss", training=QUICK)
    first = federation.step()
    assert not any(bool(upload.knowledge["measured"]) for upload in first)
    held = list(range(9, 40, 10))
    images, labels = split(40, 2).images[held], split(40, 2).labels[held]
    local = tiny()
    local.load_state_dict(first[1].weights)
    before = plain_measure(local, images, labels, "loss")
    federation.step([0])
    received = tiny()
    received.load_state_dict(federation.server.weights)
    after = plain_measure(received, images, labels, "loss")
    (upload,) = federation.step([1])
    assert bool(upload.knowledge["measured"])
    assert upload.knowledge["cost"].item() == pytest.approx(after - before, abs=1e-5)


def test_classes_are_all_in_the_holdout_when_sorted_by_class():
    labels = [k for k in range(CLASSES) for _ in range(20)]
    client = get_method("fedga").client(context("fedga", data=split(60, 0, labels)))
    client.start()
    assert client.holdout.labels.unique().tolist() == [0, 1, 2]
