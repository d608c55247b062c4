"""FedPAC: two phases on the client, prototypes and mixtures of heads on the server."""

import copy
import itertools

import pytest
import torch
from baseline_helpers import (
    CLASSES,
    DIM,
    QUICK,
    Federation,
    batch_of,
    context,
    plain_mean,
    same,
    server,
    split,
    tiny,
    uploads_for,
)

from protolith.data.augment import to_input
from protolith.methods.fedpac import head_weights, simplex_minimum
from protolith.methods.registry import get_method
from protolith.records import under_prefix


def plain_minimum(matrix):
    """Try every set of heads: the minimum inside a face of the simplex solves a linear system."""
    size = len(matrix)
    best = None
    for count in range(1, size + 1):
        for face in itertools.combinations(range(size), count):
            part = matrix[list(face)][:, list(face)]
            inside = torch.linalg.lstsq(part, torch.ones(count, 1, dtype=torch.float64), driver="gelsd").solution[:, 0]
            if float(inside.sum()) == 0 or bool((inside / inside.sum() < -1e-9).any()):
                continue
            inside = inside / inside.sum()
            value = float(inside @ part @ inside)
            if best is None or value < best:
                best = value
    return best


MATRICES = ["random", "badly scaled", "huge", "tiny", "singular", "diagonal", "one", "two", "identical", "zero"]


def matrix_of(kind, seed):
    rng = torch.Generator().manual_seed(seed)
    size = {"one": 1, "two": 2}.get(kind, 5)
    points = torch.randn(size, 2 if kind == "singular" else 8, generator=rng, dtype=torch.float64) + 0.5
    if kind == "badly scaled":
        points *= 10.0 ** torch.arange(-3, 2, dtype=torch.float64)[:, None]
    matrix = points @ points.T
    return {
        "huge": 1e8 * matrix,
        "tiny": 1e-8 * matrix,
        "diagonal": torch.diag(matrix.diagonal()),
        "identical": torch.ones_like(matrix),
        "zero": torch.zeros_like(matrix),
    }.get(kind, matrix)


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("seed", range(5))
def test_the_minimum_over_the_simplex(kind, seed):
    matrix = matrix_of(kind, seed)
    found = simplex_minimum(matrix)
    assert float(found.sum()) == pytest.approx(1.0) and float(found.min()) >= 0
    value = float(found @ matrix @ found)
    scale = float(matrix.diagonal().mean())
    assert value <= plain_minimum(matrix) + 1e-7 * scale if kind != "zero" else value == 0
    uniform = torch.full_like(found, 1 / len(found))
    assert value <= float(uniform @ matrix @ uniform) + 1e-9 * scale
    if kind in ("identical", "zero"):
        torch.testing.assert_close(found, uniform, rtol=0, atol=1e-5)  # equally good heads count alike


def plain_matrix(h, variance, i):
    """P_i entry by entry."""
    clients, classes, dims = h.shape
    rows = []
    for a in range(clients):
        row = []
        for b in range(clients):
            d = sum(
                float((h[i, k, v] - h[a, k, v]) * (h[i, k, v] - h[b, k, v]))
                for k in range(classes)
                for v in range(dims)
            )
            row.append(d + (float(variance[a]) if a == b else 0.0))
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_head_weights_lie_on_the_simplex_and_beat_uniform_ones(clients):
    rng = torch.Generator().manual_seed(clients)
    h = torch.rand(clients, CLASSES, DIM, generator=rng, dtype=torch.float64)
    variance = 0.2 * torch.rand(clients, generator=rng, dtype=torch.float64)
    alphas = head_weights(h, variance)
    assert alphas.shape == (clients, clients) and float(alphas.min()) >= 0
    torch.testing.assert_close(alphas.sum(1), torch.ones(clients, dtype=torch.float64))
    for i in range(clients):
        matrix = plain_matrix(h, variance, i)
        value = float(alphas[i] @ matrix @ alphas[i])
        assert value <= float(matrix.mean()) + 1e-9
        assert value <= plain_minimum(matrix) * (1 + 1e-2)  # weights below 1e-3 are dropped
        if clients > 1:
            assert value < float(matrix.mean())


def test_clients_with_the_same_data_share_heads_and_a_stranger_does_not():
    h = torch.zeros(3, CLASSES, DIM)
    h[2] = 5.0
    alphas = head_weights(h, torch.tensor([0.1, 0.1, 0.1]))
    torch.testing.assert_close(alphas[0], torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), rtol=0, atol=1e-3)
    assert float(alphas[2, 2]) > 0.99


def start_client(knowledge=None, data=None, dtype=torch.float32, **given):
    model = tiny(dtype=dtype)
    head = {"head/weight": model.head.weight.detach() * 2, "head/bias": model.head.bias.detach() + 1}
    client = get_method("fedpac").client(
        context("fedpac", model=model, data=data, knowledge={**head, **(knowledge or {})}, **given)
    )
    client.start()
    return client, model, head


@pytest.mark.parametrize("labels", [None, [0] * 20, [0, 1] * 10])
def test_the_statistics_before_training(labels):
    data = split(20, 0, labels)
    client, _, head = start_client(data=data)
    assert torch.equal(client.model.head.weight, head["head/weight"])
    features = tiny().eval().features(to_input(data.images, torch.device("cpu"))).detach().tolist()
    h = [[0.0] * DIM for _ in range(CLASSES)]
    squares = 0.0
    for z, y in zip(features, data.labels.tolist(), strict=True):
        squares += sum(v * v for v in z) / 20
        for v in range(DIM):
            h[y][v] += z[v] / 20  # π^k μ^k = (n^k / n)(1 / n^k) Σ z
    variance = (squares - sum(v * v for row in h for v in row)) / 20
    torch.testing.assert_close(client.h, torch.tensor(h, dtype=torch.float64), rtol=1e-4, atol=1e-6)
    assert client.variance == pytest.approx(variance, rel=1e-3, abs=1e-8)


def test_the_objective_of_the_encoder_and_the_rule_for_a_class_nobody_told_of():
    present = torch.tensor([True, False, True])
    global_ = torch.rand(CLASSES, DIM, dtype=torch.float64)
    client, model, _ = start_client({"global": global_, "present": present}, params={"lam": 0.7}, dtype=torch.float32)
    model.double()
    batch = batch_of(split(20))
    out = client.forward(batch)
    terms = client.loss(batch, out)
    total = 0.0
    for z, y in zip(out.features.tolist(), batch.labels.tolist(), strict=True):
        target = (global_[y] if present[y] else client.own_means[y].double()).tolist()
        total += sum((a - b) ** 2 for a, b in zip(z, target, strict=True)) / DIM / 20
    assert terms["align"].item() == pytest.approx(0.7 * total, rel=1e-6)
    client.head_only = True
    assert set(client.loss(batch, out)) == {"ce"}


def test_the_phases(monkeypatch):
    """First only the head moves, on an encoder that stands still; then only the encoder, BatchNorm's statistics too."""
    client, model, _ = start_client(params={"head_lr": 0.2})
    stages = []
    fit = client.fit

    def watch(parameters, epochs):
        before = {name: t.clone() for name, t in model.state_dict().items()}
        fit(parameters, epochs)
        changed = {name for name, t in model.state_dict().items() if not torch.equal(t, before[name])}
        stages.append((changed, epochs))

    monkeypatch.setattr(client, "fit", watch)
    client.train()
    head = {"head.weight", "head.bias"}
    statistics = {"bn.running_mean", "bn.running_var", "bn.num_batches_tracked"}
    encoder = {"conv.weight", "conv.bias", "bn.weight", "bn.bias", *statistics}
    assert stages == [(head, 1), (encoder, QUICK.epochs)]
    assert client.terms.steps == 3 * (1 + QUICK.epochs)
    client.head_only = True
    assert client.optimizer(list(model.head.parameters())).param_groups[0]["lr"] == 0.2
    client.head_only = False
    assert client.optimizer(list(model.parameters())).param_groups[0]["lr"] == QUICK.lr


def test_the_head_is_trained_on_features_that_do_not_depend_on_the_batch(monkeypatch):
    """Those of evaluation mode, with the statistics that the server sent."""
    client, model, _ = start_client()
    images = to_input(client.data.images, torch.device("cpu"))
    expected = copy.deepcopy(model).eval().features(images[:1]).detach()
    seen = []
    forward = client.forward

    def watch(batch):
        if client.head_only:
            seen.append(model.features(images)[:1].detach())
        return forward(batch)

    monkeypatch.setattr(client, "forward", watch)
    client.train()
    assert seen and all(torch.allclose(features, expected) for features in seen)


def test_there_is_no_alignment_in_round_zero():
    federation = Federation("fedpac", [split(20), split(9)])
    assert all(set(upload.metrics) == {"ce"} for upload in federation.step())
    assert all(set(upload.metrics) == {"ce", "align"} for upload in federation.step())


def knowledge(m):
    rng = torch.Generator().manual_seed(m)
    counts = torch.tensor([3, m, 0 if m else 2])
    return {
        "prototypes": torch.rand(CLASSES, DIM, generator=rng) * (counts > 0)[:, None],
        "counts": counts,
        "h": torch.rand(CLASSES, DIM, generator=rng),
        "variance": torch.rand((), generator=rng),
    }


def test_the_server_over_rounds_with_partial_participation():
    s = server("fedpac", (4, 10, 6))
    heads = {m: s.weights["head.weight"].double() for m in range(3)}
    prototypes, present = torch.zeros(CLASSES, DIM), [False] * CLASSES
    for round_, clients in enumerate([[0, 1, 2], [1], [2, 1]]):
        uploads = uploads_for(s, clients, round_, knowledge)
        s.aggregate(iter(uploads))
        same(s.weights, plain_mean([u.weights for u in uploads], [u.count for u in uploads]))
        for k in range(CLASSES):  # a class that nobody sent keeps its prototype
            counts = [int(u.knowledge["counts"][k]) for u in uploads]
            if sum(counts):
                present[k] = True
                prototypes[k] = sum(
                    n * u.knowledge["prototypes"][k] for n, u in zip(counts, uploads, strict=True)
                ) / sum(counts)
        torch.testing.assert_close(s.knowledge["global"], prototypes)
        assert s.knowledge["present"].tolist() == present
        alphas = head_weights(
            torch.stack([u.knowledge["h"] for u in uploads]), torch.stack([u.knowledge["variance"] for u in uploads])
        )
        for row, upload in zip(alphas, uploads, strict=True):
            heads[upload.client] = sum(
                float(a) * u.weights["head.weight"].double() for a, u in zip(row, uploads, strict=True)
            )
        for m in range(3):  # a client that missed the round keeps the head it had
            torch.testing.assert_close(s.broadcast(m).knowledge["head/weight"].double(), heads[m], rtol=1e-5, atol=1e-6)


def test_the_clients_model_is_the_averaged_encoder_with_its_own_trained_head():
    federation = Federation("fedpac", [split(20), split(9)])
    uploads = federation.step()
    own = under_prefix("own", federation.memories[1])
    assert sorted(own) == ["head.bias", "head.weight"]
    assert torch.equal(own["head.weight"], uploads[1].weights["head.weight"])
    assert federation.server.evaluates == "clients"
