"""FedProc against plain loops."""

import pytest
import torch
from helpers import (
    LOSS_CASES,
    SERVER_CASES,
    by_class,
    check_resume,
    loss_case,
    make_client,
    make_server,
    make_split,
    plain_ce,
    plain_contrast,
    plain_global,
    plain_mean,
    prototype_uploads,
    run_rounds,
)

from protolith.federation.guards import Guard


@pytest.mark.parametrize("name", LOSS_CASES)
@pytest.mark.parametrize(("schedule", "share"), [("last", 3 / 9), ("after", 3 / 10)])
def test_objective(name, schedule, share):
    batch, out, knowledge, tau = loss_case(name, tau=1.0)
    client = make_client("fedproc", {"tau": tau, "schedule": schedule}, knowledge=knowledge, round=3, rounds=10)
    terms = client.loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    expected = {
        "ce": share * plain_ce(out.logits.tolist(), labels),
        "gpc": (1 - share) * plain_contrast(features, labels, *plain_global(knowledge), tau),
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


def test_round_0_is_not_wasted():
    batch, out, _, _ = loss_case("usual")
    terms = make_client("fedproc").loss(batch, out)
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(
        {"ce": plain_ce(out.logits.tolist(), batch.labels.tolist())}
    )


@pytest.mark.parametrize(("round", "rounds", "share"), [(1, 10, 1 / 9), (9, 10, 1), (0, 1, 0), (12, 10, 1)])
def test_schedule(round, rounds, share):
    assert make_client("fedproc", round=round, rounds=rounds).share() == pytest.approx(share)


@pytest.mark.parametrize("name", SERVER_CASES)
@pytest.mark.parametrize("centres", ["clients", "samples"])
def test_centres(name, centres):
    server = make_server("fedproc", {"centres": centres}, counts=[20] * 5)
    uploads = prototype_uploads(**SERVER_CASES[name])
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    for k, vectors in by_class(uploads).items():
        assert bool(server.knowledge["present"][k]) == bool(vectors)
        if vectors and centres == "samples":
            counts = [int(u.knowledge["counts"][k]) for u in uploads if u.knowledge["counts"][k] > 0]
            vectors = [v for v, n in zip(vectors, counts, strict=True) for _ in range(n)]
        if vectors:
            torch.testing.assert_close(server.knowledge["global"][k], torch.tensor(plain_mean(vectors)))


@pytest.mark.parametrize("options", [{}, {"centres": "samples", "schedule": "after", "proto_pass": "eval_pass"}])
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    _, _, uploads = run_rounds("fedproc", options, rounds=3, chosen=[[0, 1, 2], [1, 2], [0, 1]], splits=splits)
    assert set(uploads[0][0].metrics) == {"ce"}
    assert set(uploads[2][0].metrics) == {"ce", "gpc"}


def test_resume():
    check_resume("fedproc")
