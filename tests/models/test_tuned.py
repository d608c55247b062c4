"""What is trained of a pretrained network: the same function in every form, and no frozen tensor in any record."""

import pytest
import torch

from protolith.models.backbones import open_backbone
from protolith.models.packaged import PACKAGED
from protolith.models.saved import completed, load_weights
from protolith.models.spec import see
from protolith.models.tuned import OnMaps, Pretrained, norms_of, tuned
from protolith.models.weights import packaged

NAME, SIZE = "efficientnet-lite0", 64


@pytest.fixture(autouse=True)
def _weights():
    if packaged(PACKAGED[NAME].package, PACKAGED[NAME].file) is None:
        pytest.skip(f"the package {PACKAGED[NAME].package} is not installed")


def network(tune, projection=0, scale=20.0):
    return tuned(open_backbone(NAME, size=SIZE), 5, 3, tune, projection, scale)


def images(count=4):
    return torch.randint(0, 256, (count, SIZE, SIZE, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("projection", [0, 16])
def test_head_last_and_all_are_one_function(projection):
    whole, last, head = (network(tune, projection).eval() for tune in ("all", "last", "head"))
    seen = see(whole, images())
    with torch.inference_mode():
        expected = whole(seen)
        maps, features = whole.backbone.lower(seen), whole.backbone.features(seen)
        assert torch.equal(last(maps), expected) and torch.equal(head(features), expected)
        length = (20.0 * features / features.norm(dim=1, keepdim=True)).norm(dim=1)
    assert torch.allclose(length, torch.full((4,), 20.0))


def test_features_get_one_length_before_the_head():
    head, features = network("head"), torch.rand(3, 1280) + 0.1
    by_hand = [20.0 * row / float(sum(x * x for x in row.tolist())) ** 0.5 for row in features]
    torch.testing.assert_close(head.features(features), torch.stack(by_hand))
    assert torch.equal(network("head", scale=0.0).features(features), features)


def test_a_record_holds_what_is_trained_and_nothing_else():
    assert set(network("head").state_dict()) == {"head.weight", "head.bias"}
    assert set(network("head", 8).state_dict()) == {
        "head.weight", "head.bias", "projection.0.weight", "projection.0.bias"
    }  # fmt: skip
    last = network("last")
    assert {name for name, _ in last.named_parameters()} == set(last.state_dict())
    trained, whole = set(last.state_dict()), network("all").state_dict()
    assert trained < set(whole) and len(norms_of(last)) > 10
    blocks = {int(name.split(".")[2]) for name in trained if name.startswith("backbone.blocks.")}
    assert blocks == {12, 13, 14, 15} and "backbone.stem.conv.weight" not in trained


def test_batchnorm_of_the_last_stage_stands_still_in_training():
    last = network("last")
    maps = torch.rand(6, *open_backbone(NAME, size=SIZE).maps(), generator=torch.Generator().manual_seed(2))
    before = {name: tensor.clone() for name, tensor in last.named_buffers()}
    optimizer = torch.optim.SGD(last.parameters(), lr=0.1)
    last.train()
    last(maps).square().sum().backward()
    optimizer.step()
    assert before and all(torch.equal(before[name], tensor) for name, tensor in last.named_buffers())
    assert all(parameter.grad is not None for parameter in last.parameters())


def test_a_record_of_what_was_trained_completes_to_the_whole_network():
    last, whole = network("last").eval(), Pretrained(open_backbone(NAME, size=SIZE), 5, 0, 20.0).eval()
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.add_(0.01)
    load_weights(whole, completed(whole, dict(last.state_dict()), whole.about))
    with torch.inference_mode():
        seen = see(whole, images())
        assert torch.equal(whole(seen), last(whole.backbone.lower(seen)))


def test_the_seed_decides_what_is_above_and_nothing_else_does():
    first, again, other = network("head", 8), network("head", 8), tuned(open_backbone(NAME, size=SIZE), 5, 4, "head", 8)
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    assert not torch.equal(first.head.weight, other.head.weight)
    assert torch.equal(network("last").head.weight, network("all").head.weight)
    assert isinstance(network("last"), OnMaps)
