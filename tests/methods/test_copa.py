"""COPA: the other clients' heads in the loss, all heads in the prediction."""

import math

import pytest
import torch
from baseline_helpers import (
    CLASSES,
    DIM,
    Federation,
    batch_of,
    context,
    plain_mean,
    same,
    server,
    split,
    tiny,
    uploads_for,
)

from protolith.methods.copa import ensemble
from protolith.methods.registry import get_method


def random_heads(clients, trained, seed=4):
    rng = torch.Generator().manual_seed(seed)
    return {
        "heads/weight": torch.randn(clients, CLASSES, DIM, generator=rng, dtype=torch.float64),
        "heads/bias": torch.randn(clients, CLASSES, generator=rng, dtype=torch.float64),
        "trained": torch.tensor(trained),
    }


def plain_logits(z, weight, bias):
    return [sum(w * v for w, v in zip(row, z, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def plain_shares(logits):
    total = sum(math.exp(value) for value in logits)
    return [math.exp(value) / total for value in logits]


@pytest.mark.parametrize(
    ("trained", "client"),
    [([True] * 3, 0), ([True] * 3, 2), ([True, False, True], 1), ([False] * 3, 0), ([True], 0), ([True, True], 1)],
)
@pytest.mark.parametrize("initial", [False, True])
def test_the_objective(trained, client, initial):
    knowledge = random_heads(len(trained), trained)
    model = tiny(dtype=torch.float64)
    c = get_method("copa").client(
        context("copa", model=model, knowledge=knowledge, client=client, params={"initial_heads": initial})
    )
    c.start()
    assert torch.equal(model.head.weight, knowledge["heads/weight"][client])
    assert torch.equal(model.head.bias, knowledge["heads/bias"][client])
    batch = batch_of(split(9))
    out = c.forward(batch)
    terms = c.loss(batch, out)
    expected, used = 0.0, 0
    for j, ready in enumerate(trained):
        if j != client and (ready or initial):
            used += 1
            head = [knowledge[f"heads/{name}"][j].tolist() for name in ("weight", "bias")]
            for z, y in zip(out.features.tolist(), batch.labels.tolist(), strict=True):
                expected -= math.log(plain_shares(plain_logits(z, *head))[y]) / 9
    assert ("others" in terms) == (used > 0)
    if used:
        assert terms["others"].item() == pytest.approx(expected, rel=1e-9)
        terms["others"].backward()
        assert model.head.weight.grad is None and model.conv.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("trained", [[True] * 3, [True, False, True], [True]])
def test_the_prediction_is_the_mean_of_the_trained_heads_probabilities(trained):
    knowledge = random_heads(len(trained), trained)
    model = tiny(dtype=torch.float64).eval()
    images = batch_of(split(5)).images
    predicted = ensemble(model, images, knowledge).softmax(1)
    assert get_method("copa").predict is ensemble
    for z, row in zip(model.features(images).tolist(), predicted.tolist(), strict=True):
        votes = [
            plain_shares(plain_logits(z, knowledge["heads/weight"][j].tolist(), knowledge["heads/bias"][j].tolist()))
            for j, ready in enumerate(trained)
            if ready
        ]
        assert row == pytest.approx([sum(column) / len(votes) for column in zip(*votes, strict=True)], rel=1e-9)


def test_before_anybody_has_trained_the_network_predicts_itself():
    model = tiny(dtype=torch.float64).eval()
    images = batch_of(split(5)).images
    torch.testing.assert_close(ensemble(model, images, random_heads(3, [False] * 3)), model(images))


def test_heads_are_collected_and_the_encoder_is_averaged():
    s = server("copa", (4, 10, 6))
    initial = s.weights["head.weight"]
    last = {}
    for round_, clients in enumerate([[0, 2], [2]]):
        uploads = uploads_for(s, clients, round_)
        s.aggregate(iter(uploads))
        same(s.weights, plain_mean([u.weights for u in uploads], [u.count for u in uploads]))
        last.update({u.client: u.weights["head.weight"] for u in uploads})
    assert s.knowledge["trained"].tolist() == [True, False, True]
    for m in range(3):
        assert torch.equal(s.knowledge["heads/weight"][m], last.get(m, initial))


def test_a_client_goes_on_with_its_own_head_after_missing_rounds():
    federation = Federation("copa", [split(20), split(9)])
    first = federation.step()
    federation.step([0])
    sent = federation.server.broadcast(1)
    assert torch.equal(sent.knowledge["heads/weight"][1], first[1].weights["head.weight"])


def test_round_zero_is_plain_cross_entropy():
    federation = Federation("copa", [split(20), split(9)])
    assert all(set(upload.metrics) == {"ce"} for upload in federation.step())
    assert all(set(upload.metrics) == {"ce", "others"} for upload in federation.step())
