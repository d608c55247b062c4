"""FedALA: the mix of own and global model, learned weight by weight."""

import pytest
import torch
from baseline_helpers import QUICK, Federation, context, plain_mean, random_weights, same, split, tiny

from protolith.data.augment import to_input
from protolith.methods.registry import get_method
from protolith.records import clone, under_prefix, with_prefix

STILL = QUICK.model_copy(update={"crop": 0, "flip": False, "batch": 64})


def started(own, global_, mix=None, buffers="average", data=None, **params):
    memory = {**with_prefix("own", own), **with_prefix("mix", mix or {})}
    given = context(
        "fedala",
        weights=global_,
        memory=memory,
        training=STILL,
        data=data,
        buffers=buffers,
        params={"part": 1.0, **params},
    )
    client = get_method("fedala").client(given)
    client.start()
    return client


def models():
    like = tiny().state_dict()
    return random_weights(like, 1), random_weights(like, 2)


@pytest.mark.parametrize("layers", [1, 2, 4, 0])
@pytest.mark.parametrize("eta", [1.0, 30.0])
def test_one_epoch_of_learning_the_mix(layers, eta):
    own, global_ = models()
    names = [name for name, _ in tiny().named_parameters()][-layers:]
    rng = torch.Generator().manual_seed(6)
    mix = {name: torch.rand(own[name].shape, generator=rng) for name in names}
    data = split(12)
    client = started(own, global_, mix, data=data, layers=layers, eta=eta)

    # By hand: the gradient at the mixed model, in training mode, on all images in one batch.
    start = {name: own[name] + (global_[name] - own[name]) * mix[name] for name in names}
    model = tiny()
    model.load_state_dict({**global_, **start})
    model.train()
    loss = torch.nn.functional.cross_entropy(model(to_input(data.images, torch.device("cpu"))), data.labels)
    loss.backward()
    gradients = dict(model.named_parameters())
    for name in names:
        expected = []
        numbers = (t.flatten().tolist() for t in (mix[name], gradients[name].grad, global_[name], own[name]))
        for w, g, new, old in zip(*numbers, strict=True):
            expected.append(min(1.0, max(0.0, w - eta * g * (new - old))))
        found = client.mix[name]
        torch.testing.assert_close(found, torch.tensor(expected).reshape(found.shape), rtol=1e-4, atol=1e-5)
        mixed = own[name] + (global_[name] - own[name]) * found
        torch.testing.assert_close(dict(client.model.named_parameters())[name].detach(), mixed)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_below_the_mixed_layers_the_global_model_is_taken(buffers):
    own, global_ = models()
    client = started(own, global_, buffers=buffers)
    state = client.model.state_dict()
    for name in ("conv.weight", "conv.bias", "bn.weight", "bn.bias"):
        assert torch.equal(state[name], global_[name])
    for name in ("bn.running_mean", "bn.running_var", "bn.num_batches_tracked"):  # learning the mix moves none
        assert torch.equal(state[name], (own if buffers == "local" else global_)[name])


def test_a_first_round_takes_the_global_model():
    _, global_ = models()
    client = started({}, global_)
    assert not client.mix
    assert all(torch.equal(t, global_[name]) for name, t in client.model.state_dict().items())


def test_identical_models_are_not_mixed():
    _, global_ = models()
    client = started(global_, global_)
    assert not client.mix
    assert all(torch.equal(t, global_[name]) for name, t in client.model.state_dict().items())


@pytest.mark.parametrize(("limit", "least", "most"), [(3, 3, 3), (20, 11, 20)])
def test_the_first_mix_is_learned_until_it_is_steady(monkeypatch, limit, least, most):
    own, global_ = models()
    seen = []
    client_type = get_method("fedala").client
    forward = client_type.forward
    monkeypatch.setattr(client_type, "forward", lambda self, batch: seen.append(1) or forward(self, batch))
    client = started(own, global_, first_epochs=limit)
    assert least <= len(seen) <= most  # one batch an epoch
    assert all(float(w.min()) >= 0 and float(w.max()) <= 1 for w in client.mix.values())
    seen.clear()
    started(own, global_, client.mix, first_epochs=limit)
    assert len(seen) == 1


@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_slice_of_few_images(size):
    own, global_ = models()
    client = started(own, global_, data=split(size), part=0.8) if size > 1 else None
    assert client is None or client.mix


def test_the_server_averages_and_the_client_keeps_its_model():
    federation = Federation("fedala", [split(20), split(9)])
    federation.step()
    uploads = federation.step()
    same(federation.server.weights, plain_mean([u.weights for u in uploads], [20, 9]))
    own = under_prefix("own", federation.memories[1])
    assert all(torch.equal(t, own[name]) for name, t in uploads[1].weights.items())
    assert set(under_prefix("mix", federation.memories[1])) == {"head.weight", "head.bias"}
    assert federation.server.evaluates == "clients"


def test_memory_is_not_shared_with_the_model():
    federation = Federation("fedala", [split(20)])
    federation.step()
    before = clone(federation.memories[0])
    federation.update(0)
    assert all(torch.equal(t, before[name]) for name, t in federation.memories[0].items())
