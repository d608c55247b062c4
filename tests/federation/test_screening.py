"""Norms of a round's uploads: plain-loop z-scores, what is flagged, and what becomes of it."""

import math
import statistics

import pytest
import torch

from protolith.federation.screening import Screen, clipped, norms, outliers
from protolith.federation.setup import GuardSettings
from protolith.records import Upload

ORIGIN = {"w": torch.ones(4), "bn.running_mean": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(3)}


def upload(client, scale=1.0, statistics_=1.0, prototypes=1.0, change=1.0):
    rng = torch.Generator().manual_seed(client)
    return Upload(
        client,
        10,
        {
            "w": ORIGIN["w"] + scale * torch.randn(4, generator=rng),
            "bn.running_mean": statistics_ * torch.rand(2, generator=rng),
            "bn.num_batches_tracked": torch.tensor(9),
        },
        {
            "prototypes": prototypes * (1 + torch.rand(3, 5, generator=rng)),
            "counts": torch.tensor([4, 3, 3]),
            "change/a": change * torch.rand(3, generator=rng),
            "change/b": change * torch.rand(2, generator=rng),
            "cost": torch.tensor(3.0),
        },
    )


def test_norms_against_plain_loops():
    one = upload(0)
    found = norms(one, ORIGIN)
    assert set(found) == {"weights", "statistics", "prototypes", "change"}
    assert found["weights"] == pytest.approx(math.sqrt(sum((v - 1) ** 2 for v in one.weights["w"].tolist())))
    rows = one.knowledge["prototypes"].tolist()
    assert found["prototypes"] == pytest.approx(max(math.sqrt(sum(v * v for v in row)) for row in rows))
    both = one.knowledge["change/a"].tolist() + one.knowledge["change/b"].tolist()
    assert found["change"] == pytest.approx(math.sqrt(sum(v * v for v in both)))


@pytest.mark.parametrize("count", [4, 5, 8])
def test_scores_against_plain_loops(count):
    by_client = {client: 1.0 + 0.3 * client for client in range(count - 1)} | {99: 1e4}
    logs = {client: math.log(norm) for client, norm in by_client.items()}
    middle = statistics.median(logs.values())
    spread = max(0.1, 1.4826 * statistics.median(abs(value - middle) for value in logs.values()))
    (flag,) = outliers("weights", by_client, 8.0)
    assert (flag.client, flag.what) == (99, "weights")
    assert flag.z == pytest.approx((logs[99] - middle) / spread)
    assert flag.limit == pytest.approx(math.exp(middle + 8 * spread))


def test_what_is_never_flagged():
    assert outliers("w", {0: 1.0, 1: 1.0, 2: 1e9}, 8.0) == []  # too few to tell
    assert outliers("w", dict.fromkeys(range(6), 1.0) | {6: 1.5}, 8.0) == []  # all alike, and one half as large again
    assert outliers("w", dict.fromkeys(range(6), 0.0) | {6: 1.0}, 8.0) == []  # most sent nothing
    assert outliers("w", {0: 0.0, 1: 1.0, 2: 1.1, 3: 0.9, 4: 1.2}, 8.0) == []  # too small is not absurd
    assert outliers("w", {}, 8.0) == []


@pytest.mark.parametrize("what", ["scale", "statistics_", "prototypes", "change"])
def test_clipping_brings_the_norm_down_and_changes_nothing_else(what):
    uploads = [upload(client) for client in range(5)] + [upload(5, **{what: 1e4})]
    screen = Screen(GuardSettings(norm="clip"), ORIGIN)
    for one in uploads:
        screen.measure(one)
    (flag,) = screen.flags()
    assert flag.client == 5
    made = screen.clip(uploads[5], [flag])
    after, before = norms(made, ORIGIN), norms(uploads[5], ORIGIN)
    assert after[flag.what] == pytest.approx(flag.limit, rel=1e-5)
    assert all(after[name] == pytest.approx(before[name]) for name in before if name != flag.what)
    assert screen.clip(uploads[0], [flag]) is uploads[0]
    assert clipped(uploads[5], flag, ORIGIN).knowledge["cost"] == 3.0
    assert made.weights["w"].dtype == torch.float32
