"""The parts of a partition, alone and in a run's allocation."""

import pytest
import torch
from test_protocols import TOY, make_task

from protolith.data.partition import Hand, in_turn, repaired, skewed
from protolith.data.protocols import PROTOCOLS, Protocol, allocate, data_of, partition_of
from protolith.errors import UserError

LARGE = make_task({"a": 3000, "b": 1500}, classes=10)


def hand(count=4, amount=100, labels=None, seed=0):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(600) % 10 if labels is None else labels
    rows = torch.randperm(len(labels), generator=rng)
    return Hand(rows, labels, 10, [f"a-{index + 1}" for index in range(count)], amount, rng)


@pytest.mark.parametrize("deal", [in_turn, repaired, skewed(0.1), skewed(1.0), skewed(100.0)])
def test_every_client_gets_images_of_its_domain(deal):
    dealt = deal(hand())
    assert len(dealt) == 4 and all(len(rows) for rows in dealt)
    rows = torch.cat(dealt)
    assert len(rows) == 400 and int(rows.min()) >= 0 and int(rows.max()) < 600
    if deal is not repaired:  # which may take an image that another client has, as the papers' code does
        assert len(set(rows.tolist())) == 400


def test_skew_divides_what_the_clients_would_have_in_turn():
    assert sorted(torch.cat(skewed(0.5)(hand())).tolist()) == sorted(torch.cat(in_turn(hand())).tolist())


def test_the_smaller_the_number_the_stronger_the_skew():
    def largest_share(alpha):
        labels = hand().labels
        counts = torch.stack([torch.bincount(labels[rows], minlength=10) for rows in skewed(alpha)(hand())]).float()
        return float((counts.max(dim=0).values / counts.sum(dim=0)).mean())

    strong, medium, weak = (largest_share(alpha) for alpha in (0.05, 1.0, 1000.0))
    assert strong > 0.8 > medium > 0.3 > weak > 0.24  # four clients: a quarter each without skew


def test_the_shares_of_a_class_follow_the_distribution():
    """Over many draws a share has Dirichlet's mean 1/k and variance (k - 1) / (k² (k alpha + 1))."""
    shares = []
    for seed in range(300):
        given = hand(3, 200, seed=seed)
        counts = torch.stack([torch.bincount(given.labels[rows], minlength=10) for rows in skewed(2.0)(given)])
        shares.append(counts[0] / counts.sum(dim=0))
    found = torch.stack(shares)
    assert abs(float(found.mean()) - 1 / 3) < 0.01
    assert abs(float(found.var()) - 2 / (9 * 7)) < 0.003


def test_a_draw_that_leaves_nobody_without_an_image_is_sought_a_bounded_number_of_times():
    with pytest.raises(UserError, match=r"^protocol\.skew = 0\.001: 100 draws left one of a-1 … a-8 without an image"):
        skewed(0.001)(hand(count=8, amount=2, labels=torch.zeros(20, dtype=torch.int64)))


@pytest.mark.parametrize("name", PROTOCOLS)
def test_skew_goes_with_every_protocol(name):
    protocol = Protocol(name=name, unseen="b" if name == "unseen" else "", clients={"a": 3}, samples=0.2, skew=0.3)
    found, plain = (allocate(LARGE, p, 0) for p in (protocol, protocol.model_copy(update={"skew": 0.0})))
    assert len(found.clients) == 3
    total = [sum(len(client.rows) for client in a.clients) for a in (found, plain)]
    assert abs(total[0] - total[1]) <= 3  # rounded parts of clients that test themselves
    rows = torch.cat([*(client.rows for client in found.clients)])
    assert len(set(rows.tolist())) == len(rows)
    sets = [torch.tensor(data_of(LARGE, client).counts(10)) for client in found.clients]
    even = [torch.tensor(data_of(LARGE, client).counts(10)) for client in plain.clients]
    assert torch.stack(sets).float().std(dim=0).mean() > 3 * torch.stack(even).float().std(dim=0).mean()


def test_skew_depends_on_the_seed_and_the_domain_alone():
    protocol = Protocol(clients={"a": 3, "b": 3}, skew=0.3)
    first, same, other = (allocate(LARGE, protocol, seed) for seed in (0, 0, 1))
    assert all(torch.equal(x.rows, y.rows) for x, y in zip(first.clients, same.clients, strict=True))
    assert [len(x.rows) for x in first.clients] != [len(x.rows) for x in other.clients]
    assert [len(x.rows) for x in first.clients[:3]] != [len(x.rows) for x in first.clients[3:]]


def test_skew_and_repair_exclude_each_other():
    with pytest.raises(UserError, match=r"^protocol\.skew and protocol\.repair: .* leave one out\.$"):
        allocate(TOY, Protocol(skew=0.5, repair=True), 0)


def test_what_is_tested_is_a_part_and_not_a_name():
    parts = {name: partition_of(Protocol(name=name, unseen="a")) for name in PROTOCOLS}
    assert {name for name, partition in parts.items() if partition.own} == {"local"}
    assert {name for name, partition in parts.items() if partition.unseen} == {"unseen"}
