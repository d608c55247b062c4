"""FPL against plain loops written from the paper's Eqs. 2-10."""

from pathlib import Path

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
    make_split,
    make_upload,
    plain_ce,
    plain_contrast,
    plain_finch,
    plain_global,
    plain_mean,
    prototype_uploads,
    run_rounds,
)

from protolith.federation.guards import Guard
from protolith.methods.registry import get_method
from protolith.records import nbytes


def with_clusters(knowledge):
    """Two cluster prototypes for every class that is present: the global one and a shifted copy."""
    prototypes, labels = [], []
    for k in range(CLASSES):
        if bool(knowledge["present"][k]):
            shift = torch.linspace(0, 1, DIM, dtype=knowledge["global"].dtype)
            prototypes += [knowledge["global"][k], knowledge["global"][k] + shift]
            labels += [k, k]
    stacked = torch.stack(prototypes) if prototypes else torch.zeros(0, DIM)
    return {**knowledge, "clusters": stacked, "cluster_labels": torch.tensor(labels, dtype=torch.int64)}


def plain_align(features, labels, targets, mean=True):
    """Eq. 10: squared distance to the class's prototype, over the samples that have one."""
    distances = []
    for z, y in zip(features, labels, strict=True):
        if y in targets:
            squares = [(a - b) ** 2 for a, b in zip(z, targets[y], strict=True)]
            distances.append(sum(squares) / (len(squares) if mean else 1))
    return sum(distances) / len(distances) if distances else 0.0


def unbiased(knowledge):
    """Eq. 6: the mean of the clusters of each class."""
    found = {}
    for vector, label in zip(knowledge["clusters"].tolist(), knowledge["cluster_labels"].tolist(), strict=True):
        found.setdefault(label, []).append(vector)
    return {label: plain_mean(vectors) for label, vectors in found.items()}


@pytest.mark.parametrize("name", LOSS_CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_objective(name, reduction):
    batch, out, knowledge, tau = loss_case(name)
    knowledge = with_clusters(knowledge)
    terms = make_client("fpl", {"tau": tau, "reduction": reduction}, knowledge=knowledge).loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    clusters = knowledge["clusters"].tolist(), knowledge["cluster_labels"].tolist()
    expected = {
        "ce": plain_ce(out.logits.tolist(), labels),
        "cpcl": plain_contrast(features, labels, *clusters, tau),
        "upcr": plain_align(features, labels, unbiased(knowledge), reduction == "mean"),
    }
    # Eq. 6 is computed in the prototypes' own precision, float32.
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-6, abs=1e-9)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


@pytest.mark.parametrize(
    ("params", "names"),
    [
        ({}, {"ce", "cpcl", "upcr"}),
        ({"cpcl": "off"}, {"ce", "upcr"}),
        ({"upcr": "off"}, {"ce", "cpcl"}),
        ({"cpcl": "off", "upcr": "off"}, {"ce"}),
    ],
)
def test_the_rows_of_table_1(params, names):
    batch, out, knowledge, _ = loss_case("usual")
    assert set(make_client("fpl", params, knowledge=with_clusters(knowledge)).loss(batch, out)) == names


def test_plain_global_prototypes_of_table_3():
    batch, out, knowledge, tau = loss_case("usual")
    params = {"tau": tau, "cpcl": "global", "upcr": "global"}
    terms = make_client("fpl", params, knowledge=with_clusters(knowledge)).loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    prototypes, classes = plain_global(knowledge)
    assert terms["cpcl"].item() == pytest.approx(plain_contrast(features, labels, prototypes, classes, tau))
    targets = dict(zip(classes, prototypes, strict=True))
    assert terms["upcr"].item() == pytest.approx(plain_align(features, labels, targets))
    server = make_server("fpl", params, counts=[20] * 5)
    server.aggregate(iter(uploads := prototype_uploads(**SERVER_CASES[next(iter(SERVER_CASES))])))
    for k, vectors in by_class(uploads).items():
        if vectors:
            torch.testing.assert_close(server.knowledge["global"][k], torch.tensor(plain_mean(vectors)))


def test_round_0_is_cross_entropy():
    batch, out, _, _ = loss_case("usual")
    assert set(make_client("fpl").loss(batch, out)) == {"ce"}


@pytest.mark.parametrize("name", SERVER_CASES)
@pytest.mark.parametrize("partition", ["last", "first"])
def test_clusters(name, partition):
    """Eqs. 4-5: FINCH on the clients' prototypes of each class, and the means of its clusters."""
    server = make_server("fpl", {"partition": partition}, counts=[20] * 5)
    uploads = prototype_uploads(**SERVER_CASES[name])
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    expected = []
    for k, vectors in by_class(uploads).items():
        groups = {}
        for vector, cluster in zip(vectors, plain_finch(vectors, partition) if vectors else [], strict=True):
            groups.setdefault(cluster, []).append(vector)
        expected += [(k, plain_mean(members)) for members in groups.values()]
    found = list(zip(server.knowledge["cluster_labels"].tolist(), server.knowledge["clusters"].tolist(), strict=True))
    assert len(found) == len(expected)
    for (k, vector), (wanted_k, wanted) in zip(sorted(found), sorted(expected), strict=True):
        assert k == wanted_k and vector == pytest.approx(wanted, rel=1e-5, abs=1e-6)


def test_a_class_that_nobody_sends_keeps_its_clusters():
    server = make_server("fpl", counts=[20] * 5)
    server.aggregate(iter(prototype_uploads([(0, 1), (0, 1), (1,)])))
    before = server.knowledge["clusters"][server.knowledge["cluster_labels"] == 1]
    server.aggregate(iter(prototype_uploads([(0,), (0, 2)], seed=9)))
    after = server.knowledge["clusters"][server.knowledge["cluster_labels"] == 1]
    assert torch.equal(before, after)
    assert set(server.knowledge["cluster_labels"].tolist()) == {0, 1, 2}


@pytest.mark.parametrize("proto_pass", ["last_epoch_train", "eval_pass"])
def test_local_prototypes(proto_pass):
    """Eq. 2: the mean feature of each class, of the last epoch's features or of a pass after training."""
    data = make_split((0, 1, 1, 3, 0, 3, 1))
    client = make_client("fpl", {"proto_pass": proto_pass}, data=data)
    seen = []
    forward = client.forward

    def remembering(batch):
        out = forward(batch)
        seen.append((batch.epoch, batch.labels.tolist(), out.features.detach().tolist()))
        return out

    client.forward = remembering
    upload, _ = client.update()
    if proto_pass == "eval_pass":
        from protolith.data.augment import to_input

        client.model.eval()
        with torch.no_grad():
            features = client.model.features(to_input(data.images, torch.device("cpu"))).tolist()
        pairs = list(zip(data.labels.tolist(), features, strict=True))
    else:
        last = max(epoch for epoch, _, _ in seen)
        pairs = [p for epoch, ys, zs in seen if epoch == last for p in zip(ys, zs, strict=True)]
    assert upload.knowledge["counts"].tolist() == [2, 3, 0, 2]
    for k in range(CLASSES):
        vectors = [z for y, z in pairs if y == k]
        expected = plain_mean(vectors) if vectors else [0.0] * DIM
        assert upload.knowledge["prototypes"][k].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_rounds_with_clients_that_come_and_go():
    server, _, uploads = run_rounds("fpl", rounds=3, chosen=[[0, 1, 2], [1], [0, 2]])
    assert "clusters" in server.knowledge and uploads
    check_resume("fpl")


@pytest.mark.parametrize("clients", range(1, 8))
def test_the_traffic_line_bounds_the_clusters_and_the_bound_is_reached(clients):
    """At most max(1, M/2 rounded down) for each class: pairs of like prototypes reach it, one client has one."""
    most = max(1, clients // 2)
    server = make_server("fpl", {"partition": "first"}, counts=[20] * clients)
    uploads = []
    for client in range(clients):
        prototypes = torch.zeros(CLASSES, DIM)
        prototypes[:, min(client // 2, most - 1)] = 1.0 + client
        uploads.append(make_upload(client, prototypes=prototypes, counts=torch.full((CLASSES,), 5)))
    server.aggregate(iter(uploads))
    message = server.broadcast(0)
    assert torch.bincount(message.knowledge["cluster_labels"]).tolist() == [most] * CLASSES
    assert message.nbytes == nbytes(message.weights) + (4 * DIM + 8) * most * CLASSES
    assert uploads[0].nbytes == nbytes(uploads[0].weights) + 4 * CLASSES * DIM + 8 * CLASSES
    page = (Path(__file__).parents[2] / "docs" / "methods" / "fpl.md").read_text()
    assert "max(1, ⌊M/2⌋)" in get_method("fpl").traffic and "max(1, ⌊*M*/2⌋)" in page


def test_random_prototypes_stay_within_the_traffic_line():
    for clients in range(1, 8):
        server = make_server("fpl", {"partition": "first"}, counts=[20] * clients)
        server.aggregate(iter(prototype_uploads([range(CLASSES)] * clients, seed=clients)))
        found = torch.bincount(server.knowledge["cluster_labels"])
        assert int(found.max()) <= max(1, clients // 2)
