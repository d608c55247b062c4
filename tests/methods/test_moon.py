"""MOON's contrast: its value, when it is on, and what the frozen networks may not do."""

import math

import pytest
import torch
from baseline_helpers import Federation, batch_of, context, random_weights, split, tiny

from protolith.methods.registry import get_method
from protolith.records import clone, with_prefix


def started(previous=True, same=False, **params):
    model = tiny(dtype=torch.float64)
    own = clone(model.state_dict()) if same else random_weights(model.state_dict(), 3)
    given = context("moon", model=model, params=params, memory=with_prefix("previous", own) if previous else {})
    client = get_method("moon").client(given)
    client.start()
    return client, model, own


def frozen_features(weights, images):
    net = tiny(dtype=torch.float64)
    net.load_state_dict(weights)
    return net.eval().features(images)


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return dot / lengths if lengths > 1e-16 else 0.0


@pytest.mark.parametrize(("mu", "tau"), [(1.0, 0.5), (5.0, 0.5), (1.0, 0.05)])
@pytest.mark.parametrize("images", [1, 9])
def test_the_objective(mu, tau, images):
    client, model, own = started(mu=mu, tau=tau)
    broadcast = clone(model.state_dict())
    with torch.no_grad():
        model.conv.weight.mul_(-0.5)
    model.eval()  # one image has no batch statistics to speak of
    batch = batch_of(split(images))
    out = client.forward(batch)
    terms = client.loss(batch, out)
    z_glob, z_prev = (frozen_features(weights, batch.images) for weights in (broadcast, own))
    total = 0.0
    for z, g, p in zip(out.features.tolist(), z_glob.tolist(), z_prev.tolist(), strict=True):
        near, far = math.exp(cosine(z, g) / tau), math.exp(cosine(z, p) / tau)
        total -= math.log(near / (near + far))
    assert terms["con"].item() == pytest.approx(mu * total / images, rel=1e-9)
    assert set(terms) == {"ce", "con"}


def test_the_contrast_is_off_until_a_client_has_a_previous_model():
    federation = Federation("moon", [split(20), split(9)])
    assert all("con" not in upload.metrics for upload in federation.step([0]))
    first, second = federation.step()
    assert first.metrics["con"] > 0 and "con" not in second.metrics
    assert all("con" in upload.metrics for upload in federation.step())


def test_identical_models_give_log_two():
    client, model, _ = started(same=True)
    model.eval()
    batch = batch_of(split(9))
    assert client.loss(batch, client.forward(batch))["con"].item() == pytest.approx(math.log(2), rel=1e-6)


def test_the_other_networks_are_frozen_in_evaluation_mode_and_share_nothing():
    client, model, _ = started()
    model.train()
    batch = batch_of(split(9))
    before = [clone(net.state_dict()) for net in client.frozen]
    client.loss(batch, client.forward(batch))["con"].backward()
    assert model.conv.weight.grad.abs().sum() > 0
    for net, state in zip(client.frozen, before, strict=True):
        assert not net.training and all(p.grad is None and not p.requires_grad for p in net.parameters())
        assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())
    assert model.bn.num_batches_tracked.item() == 1  # one training forward


def test_the_previous_model_is_the_one_that_was_sent():
    federation = Federation("moon", [split(20)])
    (upload,) = federation.step()
    for name, tensor in upload.weights.items():
        assert torch.equal(federation.memories[0][f"previous/{name}"], tensor)
