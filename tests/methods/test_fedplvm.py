"""FedPLVM against plain loops: local clusters, clusters of clusters, α-sparsity."""

from pathlib import Path

import pytest
import torch
from helpers import (
    CLASSES,
    DIM,
    LOSS_CASES,
    check_resume,
    cosine,
    loss_case,
    make_client,
    make_server,
    make_split,
    make_upload,
    plain_ce,
    plain_contrast,
    plain_finch,
    plain_mean,
    run_rounds,
)

from protolith.data.augment import to_input
from protolith.federation.guards import Guard
from protolith.methods.registry import get_method
from protolith.records import nbytes


def clusters(knowledge):
    """Two prototypes for each class of the case, the second near the first."""
    classes = knowledge["present"].nonzero().squeeze(1)
    points = knowledge["global"][classes]
    return {
        "clusters": torch.cat([points, points.roll(1, dims=1)]),
        "cluster_labels": torch.cat([classes, classes]),
    }


@pytest.mark.parametrize("name", LOSS_CASES)
def test_objective(name):
    batch, out, knowledge, tau = loss_case(name)
    found = clusters(knowledge)
    client = make_client("fedplvm", {"tau": tau, "weight": 5, "alpha": 0.25}, knowledge=found)
    terms = client.loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    points, classes = found["clusters"].tolist(), found["cluster_labels"].tolist()
    means = {k: plain_mean([p for p, c in zip(points, classes, strict=True) if c == k]) for k in set(classes)}
    apart = [(1 - cosine(z, means[y])) ** 2 for z, y in zip(features, labels, strict=True) if y in means]
    expected = {
        "ce": plain_ce(out.logits.tolist(), labels),
        "alpha": 5 * plain_contrast(features, labels, points, classes, tau, power=0.25),
        "cor": 5 * 2 * sum(apart) / len(apart) if apart else 0.0,
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


@pytest.mark.parametrize(
    ("options", "terms"),
    [({}, {"ce", "alpha", "cor"}), ({"correction": False}, {"ce", "alpha"}), ({"weight": 0}, {"ce"})],
)
def test_switches(options, terms):
    batch, out, knowledge, _ = loss_case("usual")
    assert set(make_client("fedplvm", options, knowledge=clusters(knowledge)).loss(batch, out)) == terms
    assert set(make_client("fedplvm", options).loss(batch, out)) == {"ce"}  # round 0


def plain_clusters(points, labels, partition="last"):
    """The cluster means of each class, in the order of classes."""
    found = []
    for k in sorted(set(labels)):
        mine = [p for p, y in zip(points, labels, strict=True) if y == k]
        groups = plain_finch(mine, partition)
        for c in range(max(groups) + 1):
            found.append((k, plain_mean([p for p, g in zip(mine, groups, strict=True) if g == c])))
    return found


@pytest.mark.parametrize("partition", ["last", "first"])
@pytest.mark.parametrize("labels", [(0, 1, 3) * 12, (2,) * 10, (0, 0, 1, 1, 1, 3)])
def test_local_clusters(partition, labels):
    data = make_split(labels)
    client = make_client("fedplvm", {"partition": partition}, data=data)
    upload, _ = client.update()
    with torch.no_grad():
        features = client.model.eval().features(to_input(data.images, torch.device("cpu"))).tolist()
    expected = plain_clusters(features, list(labels), partition)
    assert upload.knowledge["labels"].tolist() == [k for k, _ in expected]
    torch.testing.assert_close(upload.knowledge["prototypes"], torch.tensor([p for _, p in expected]))


def sent(sizes, seed=0, identical=False):
    """Uploads in which client m sends sizes[m][k] prototypes of class k."""
    rng = torch.Generator().manual_seed(seed)
    uploads = []
    for client, by_class in enumerate(sizes):
        labels = torch.tensor([k for k, n in enumerate(by_class) for _ in range(n)])
        points = torch.rand(1 if identical else len(labels), DIM, generator=rng).expand(len(labels), DIM).clone()
        uploads.append(make_upload(client, prototypes=points, labels=labels))
    return uploads


@pytest.mark.parametrize(
    "sizes",
    [
        [[2, 3, 1, 2], [1, 2, 2, 4], [3, 3, 1, 1]],
        [[2, 0, 1, 2], [1, 0, 2, 0]],
        [[0, 0, 0, 1], [1, 2, 2, 0]],
        [[4, 4, 4, 4]],
    ],
)
def test_clusters_of_clusters(sizes):
    server = make_server("fedplvm")
    uploads = sent(sizes)
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    points = [p for u in uploads for p in u.knowledge["prototypes"].tolist()]
    labels = [k for u in uploads for k in u.knowledge["labels"].tolist()]
    expected = plain_clusters(points, labels)
    assert server.knowledge["cluster_labels"].tolist() == [k for k, _ in expected]
    torch.testing.assert_close(server.knowledge["clusters"], torch.tensor([p for _, p in expected]))


def test_identical_prototypes_are_one_cluster():
    server = make_server("fedplvm")
    uploads = sent([[3, 3, 0, 0]], identical=True)
    server.aggregate(iter(uploads))
    assert server.knowledge["cluster_labels"].tolist() == [0, 1]


def test_a_class_that_nobody_sends_again_keeps_its_clusters():
    server = make_server("fedplvm")
    server.aggregate(iter(sent([[2, 2, 2, 2]] * 2)))
    of_three = server.knowledge["clusters"][server.knowledge["cluster_labels"] == 3]
    server.aggregate(iter(sent([[2, 2, 2, 0]] * 2, seed=5)))
    assert torch.equal(server.knowledge["clusters"][server.knowledge["cluster_labels"] == 3], of_three)


@pytest.mark.parametrize(("models", "expected"), [("equal", 2.0), ("size", 1.5)])
def test_models_count_alike_or_by_size(models, expected):
    server = make_server("fedplvm", {"models": models})
    uploads = sent([[1, 1, 1, 1]] * 2)
    uploads = [
        make_upload(u.client, count=n, weights={"w": torch.full((2,), w)}, **u.knowledge)
        for u, n, w in zip(uploads, (15, 5), (1.0, 3.0), strict=True)
    ]
    server.aggregate(iter(uploads))
    assert server.weights["w"].tolist() == pytest.approx([expected] * 2)


@pytest.mark.parametrize(
    "wrong",
    [
        {"labels": torch.tensor([0, CLASSES])},
        {"labels": torch.tensor([0, -1])},
        {"prototypes": torch.zeros(2, DIM + 1)},
        {"prototypes": torch.full((2, DIM), torch.nan)},
    ],
)
def test_the_guard_refuses(wrong):
    right = {"prototypes": torch.zeros(2, DIM), "labels": torch.tensor([0, 1])}
    server = make_server("fedplvm")
    assert Guard(server).problem(make_upload(0, **right)) is None
    assert Guard(server).problem(make_upload(0, **{**right, **wrong}))


@pytest.mark.parametrize("options", [{}, {"proto_pass": "last_epoch_train", "weight": 100}])
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    _, _, uploads = run_rounds("fedplvm", options, rounds=3, chosen=[[0, 1, 2], [1, 2], [0, 1]], splits=splits)
    assert set(uploads[0][0].metrics) == {"ce"}
    assert set(uploads[2][0].metrics) == {"ce", "alpha", "cor"}


def test_resume():
    check_resume("fedplvm")


@pytest.mark.parametrize("labels", [(0, 1, 2, 3), (2, 2), (0, 0, 1, 1, 1, 3), (0,) * 9 + (1,) * 2, (0, 1, 3) * 12])
def test_the_traffic_line_bounds_what_a_client_sends(labels):
    """Σ_k max(1, n_k/2 rounded down), not n_m/2: a client with one image a class sends each of them."""
    upload, _ = make_client("fedplvm", {"partition": "first"}, data=make_split(labels)).update()
    sent, images = upload.knowledge["labels"].bincount(), torch.tensor(labels).bincount()
    assert (sent <= torch.where(images > 0, (images // 2).clamp_min(1), 0)).all()
    assert upload.nbytes == nbytes(upload.weights) + (4 * DIM + 8) * int(sent.sum())
    server = make_server("fedplvm", {"partition": "first"}, counts=[len(labels)], weights=upload.weights)
    server.aggregate(iter([upload]))
    message = server.broadcast(0)
    back = message.knowledge["cluster_labels"].bincount()
    assert (back <= torch.where(sent > 0, (sent // 2).clamp_min(1), 0)).all()
    assert message.nbytes == nbytes(message.weights) + (4 * DIM + 8) * int(back.sum())
    page = (Path(__file__).parents[2] / "docs" / "methods" / "fedplvm.md").read_text()
    assert "max(1, ⌊n_m^k/2⌋)" in get_method("fedplvm").traffic and "max(1, ⌊*n_m^k*/2⌋)" in page
