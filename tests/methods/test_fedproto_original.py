"""The original FedProto: only prototypes travel."""

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
    plain_ce,
    plain_mean,
    prototype_uploads,
    random_global,
    run_rounds,
    same_record,
    tiny,
)

from protolith.federation.guards import Guard
from protolith.methods.fedproto_original import METHOD
from protolith.records import under_prefix


@pytest.mark.parametrize("name", LOSS_CASES)
def test_objective(name):
    batch, out, knowledge, _ = loss_case(name)
    terms = make_client("fedproto-original", {"mu": 2}, knowledge=knowledge).loss(batch, out)
    targets, present = knowledge["global"].tolist(), knowledge["present"].tolist()
    squares = [
        sum((a - b) ** 2 for a, b in zip(z, targets[y], strict=True)) / DIM
        for z, y in zip(out.features.tolist(), batch.labels.tolist(), strict=True)
        if present[y]
    ]
    expected = {
        "ce": plain_ce(out.logits.tolist(), batch.labels.tolist()),
        "proto": 2 * sum(squares) / len(squares) if squares else 0.0,
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", SERVER_CASES)
def test_prototypes_are_averaged_over_clients(name):
    server = make_server("fedproto-original", counts=[20] * 5)
    uploads = [upload.without_weights() for upload in prototype_uploads(**SERVER_CASES[name])]
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    before = server.weights
    server.aggregate(iter(uploads))
    assert server.weights == before
    for k, vectors in by_class(uploads).items():
        assert bool(server.knowledge["present"][k]) == bool(vectors)
        expected = torch.tensor(plain_mean(vectors)) if vectors else torch.zeros(DIM)
        torch.testing.assert_close(server.knowledge["global"][k], expected)


def test_weights_go_out_once_and_never_come_back():
    server, memories, uploads = run_rounds("fedproto-original", rounds=2, chosen=[[0, 1], [1]])
    assert all(upload.weights == {} for per_round in uploads for upload in per_round)
    assert server.broadcast(0).weights == {}
    assert server.broadcast(2).weights  # has not taken part yet
    assert set(server.broadcast(2).knowledge) == {"global", "present"}
    assert set(under_prefix("own", memories[0])) == set(tiny().state_dict())


def test_a_client_that_missed_a_round_goes_on_with_its_own_model():
    _, memories, _ = run_rounds("fedproto-original", rounds=2, chosen=[[0, 1], [1]])
    server, first, _ = run_rounds("fedproto-original", rounds=1, chosen=[[0, 1]])
    same_record(memories[0], first[0])
    message = server.broadcast(0)
    client = make_client(
        "fedproto-original", memory=memories[0], weights=message.weights, knowledge=message.knowledge, round=2
    )
    client.start()
    same_record(under_prefix("own", memories[0]), dict(client.model.state_dict()))


def test_prediction():
    model, knowledge = (
        tiny().eval(),
        {k: v.float() if v.is_floating_point() else v for k, v in random_global((1,)).items()},
    )
    images = torch.rand(5, 3, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(METHOD.predict(model, images, knowledge), model(images))
        scores = METHOD.predict(model, images, {**knowledge, "nearest": torch.tensor(True)})
        features = model.features(images).tolist()
    for z, row in zip(features, scores.tolist(), strict=True):
        distances = {
            k: sum((a - b) ** 2 for a, b in zip(z, knowledge["global"][k].tolist(), strict=True)) for k in (0, 2, 3)
        }
        assert max(range(CLASSES), key=row.__getitem__) == min(distances, key=distances.get)
        assert row[1] == -torch.inf


def test_the_way_of_prediction_travels_with_the_prototypes():
    server = make_server("fedproto-original", {"prediction": "nearest"})
    assert server.broadcast(0).knowledge == {}  # round 0: the head
    server.aggregate(upload.without_weights() for upload in prototype_uploads([range(4)] * 2))
    assert bool(server.broadcast(0).knowledge["nearest"])
    assert "nearest" not in server.knowledge


@pytest.mark.parametrize("options", [{}, {"prediction": "nearest", "proto_pass": "eval_pass"}])
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    chosen = [[0, 1, 2], [1, 2], [0, 1]]
    _, _, uploads = run_rounds("fedproto-original", options, rounds=3, chosen=chosen, splits=splits)
    assert set(uploads[0][0].metrics) == {"ce"}
    assert set(uploads[2][0].metrics) == {"ce", "proto"}


def test_resume():
    check_resume("fedproto-original")


def test_the_clients_models_are_evaluated():
    assert METHOD.server.evaluates == "clients"
