"""FedProto with averaged models against plain loops."""

import pytest
import torch
from helpers import (
    CLASSES,
    DIM,
    LOSS_CASES,
    SERVER_CASES,
    by_class,
    check_resume,
    loss_case,
    make_client,
    make_server,
    plain_ce,
    plain_mean,
    prototype_uploads,
    run_rounds,
)

from protolith.federation.guards import Guard


@pytest.mark.parametrize("name", LOSS_CASES)
@pytest.mark.parametrize("mu", [0.0, 1.0, 2.5])
def test_objective(name, mu):
    batch, out, knowledge, _ = loss_case(name)
    terms = make_client("fedproto", {"mu": mu}, knowledge=knowledge).loss(batch, out)
    distances = []
    for z, y in zip(out.features.tolist(), batch.labels.tolist(), strict=True):
        if bool(knowledge["present"][y]):
            target = knowledge["global"][y].tolist()
            distances.append(sum((a - b) ** 2 for a, b in zip(z, target, strict=True)) / DIM)
    expected = mu * sum(distances) / len(distances) if distances else 0.0
    assert terms["proto"].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert terms["ce"].item() == pytest.approx(plain_ce(out.logits.tolist(), batch.labels.tolist()))
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


def test_round_0_is_cross_entropy():
    batch, out, _, _ = loss_case("usual")
    assert set(make_client("fedproto").loss(batch, out)) == {"ce"}


@pytest.mark.parametrize("name", SERVER_CASES)
def test_every_client_counts_alike(name):
    server = make_server("fedproto", counts=[20] * 5)
    uploads = prototype_uploads(**SERVER_CASES[name])
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    for k, vectors in by_class(uploads).items():
        assert bool(server.knowledge["present"][k]) == bool(vectors)
        expected = torch.tensor(plain_mean(vectors)) if vectors else torch.zeros(DIM)
        torch.testing.assert_close(server.knowledge["global"][k], expected)
    before = server.knowledge["global"].clone()
    server.aggregate(iter(prototype_uploads([(0,)], seed=8)))
    for k in range(1, CLASSES):
        assert torch.equal(server.knowledge["global"][k], before[k])  # nobody sent it: it stays


def test_rounds_with_clients_that_come_and_go():
    run_rounds("fedproto", rounds=3, chosen=[[0, 1, 2], [1], [0, 2]])
    check_resume("fedproto")
