"""FedBN: what belongs to BatchNorm stays with the client."""

import pytest
import torch
from baseline_helpers import QUICK, Federation, context, plain_mean, same, split

from protolith.methods.registry import get_method
from protolith.models import build_model
from protolith.records import under_prefix

BN = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var", "bn.num_batches_tracked"]


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_batch_norm_stays_and_everything_is_averaged(buffers):
    federation = Federation("fedbn", [split(20), split(9)], buffers=buffers)
    uploads = federation.step()
    same(federation.server.weights, plain_mean([u.weights for u in uploads], [20, 9]))
    for upload in uploads:
        own = under_prefix("own", federation.memories[upload.client])
        assert sorted(own) == sorted(BN)
        assert all(torch.equal(own[name], upload.weights[name]) for name in BN)


def test_a_round_starts_from_the_global_model_with_the_own_batch_norm():
    federation = Federation("fedbn", [split(20), split(9), split(8)])
    first = federation.step([0, 1])
    federation.step([0])  # client 1 misses a round
    client_type = get_method("fedbn").client
    seen = {}
    train = client_type.train
    client_type.train = lambda self: seen.update({k: v.clone() for k, v in self.model.state_dict().items()})
    try:
        federation.update(1)
        for name, tensor in seen.items():
            expected = first[1].weights if name in BN else federation.server.weights
            assert torch.equal(tensor, expected[name])
        federation.update(2)  # has no batch norm of its own yet
        assert all(torch.equal(tensor, federation.server.weights[name]) for name, tensor in seen.items())
    finally:
        client_type.train = train


def test_every_batch_norm_of_a_resnet_is_found():
    model = build_model("resnet10", 3, 4, 0)
    client = get_method("fedbn").client(context("fedbn", model=model, training=QUICK))
    assert len(client.local) == 12 * 5
    assert "layer2.0.downsample.1.weight" in client.local and "layer2.0.downsample.0.weight" not in client.local
    assert "head.weight" not in client.local


def test_it_is_tested_on_the_clients_models():
    assert get_method("fedbn").server.evaluates == "clients"
