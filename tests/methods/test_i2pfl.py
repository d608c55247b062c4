"""I2PFL against plain loops written from the paper's Eqs. 2-10."""

import numpy as np
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
    make_batch,
    make_client,
    make_output,
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
    tiny,
)

from protolith.federation.guards import Guard
from protolith.losses import different_class_partner
from protolith.methods.i2pfl import METHOD
from protolith.seeds import derive

SEED = 7


def draws(labels, alpha, per_sample=False):
    """What the client draws for its first batch: γ for each sample, and the partners."""
    drawn = np.random.default_rng(derive(SEED, "mixup")).beta(alpha, alpha, len(labels) if per_sample else 1)
    gammas = list(drawn) if per_sample else list(drawn) * len(labels)
    partners = different_class_partner(torch.tensor(labels), torch.Generator().manual_seed(SEED))
    return gammas, partners.tolist()


def plain_augmented(features, labels, gammas, partners):
    """Eqs. 7 and 8: p̃ of each class of the batch."""
    mixed = {}
    for h, y, g, j in zip(features, labels, gammas, partners, strict=True):
        mixed.setdefault(y, []).append([g * a + (1 - g) * b for a, b in zip(h, features[j], strict=True)])
    return {k: plain_mean(vectors) for k, vectors in mixed.items()}


def plain_apa(features, labels, augmented, of="sample"):
    """Eq. 9, as a mean over samples (or classes) and dimensions."""
    if of == "class":
        members = {k: [h for h, y in zip(features, labels, strict=True) if y == k] for k in augmented}
        features, labels = [plain_mean(m) for m in members.values()], list(members)
    squares = [
        sum((a - b) ** 2 for a, b in zip(h, augmented[y], strict=True)) / len(h)
        for h, y in zip(features, labels, strict=True)
        if y in augmented
    ]
    return sum(squares) / len(squares) if squares else 0.0


@pytest.mark.parametrize("name", LOSS_CASES)
@pytest.mark.parametrize("per_sample", [False, True])
@pytest.mark.parametrize("of", ["sample", "class"])
def test_objective(name, per_sample, of):
    batch, out, knowledge, tau = loss_case(name)
    options = {"tau": tau, "alpha": 0.4, "lambda_intra": 10, "lambda_inter": 3, "apa": of}
    client = make_client("i2pfl", {**options, "gamma": "sample" if per_sample else "batch"}, knowledge=knowledge)
    terms = client.loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    augmented = plain_augmented(features, labels, *draws(labels, 0.4, per_sample))
    expected = {
        "ce": plain_ce(out.logits.tolist(), labels),
        "apa": 10 * plain_apa(features, labels, augmented, of),
        "gpcl": 3 * plain_contrast(features, labels, *plain_global(knowledge), tau),
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


def test_partners_are_of_another_class():
    labels = [0, 0, 1, 2, 2, 3]
    _, partners = draws(labels, 0.4)
    assert all(labels[i] != labels[j] for i, j in enumerate(partners))


def test_one_class_is_mixed_with_nothing():
    batch = make_batch([2, 2, 2])
    out = make_output(batch)
    mixed, counts = make_client("i2pfl").augmented(batch, out)
    torch.testing.assert_close(mixed[2], out.features.mean(0))
    assert counts.tolist() == [0, 0, 3, 0]


def test_round_0_has_apa_and_no_gpcl():
    batch = make_batch([0, 1, 2])
    assert set(make_client("i2pfl").loss(batch, make_output(batch))) == {"ce", "apa"}


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({"lambda_intra": 0}, {"ce", "gpcl"}),
        ({"lambda_inter": 0}, {"ce", "apa"}),
        ({"lambda_intra": 0, "lambda_inter": 0}, {"ce"}),
    ],
)
def test_table_4(options, terms):
    batch, out, knowledge, _ = loss_case("usual")
    client = make_client("i2pfl", options, knowledge=knowledge)
    assert set(client.loss(batch, out)) == terms


def test_mixup_off_aligns_with_plain_means():
    batch, out, _, _ = loss_case("usual")
    features, labels = out.features.tolist(), batch.labels.tolist()
    means = {k: plain_mean([h for h, y in zip(features, labels, strict=True) if y == k]) for k in set(labels)}
    value = make_client("i2pfl", {"mixup": "off", "lambda_intra": 1}).loss(batch, out)["apa"]
    assert value.item() == pytest.approx(plain_apa(features, labels, means))


def test_mixup_of_images():
    batch, out, _, _ = loss_case("usual")
    client = make_client("i2pfl", {"mixup": "input", "lambda_intra": 1})
    client.model.train()
    before = client.model.bn.running_mean.clone()
    value = client.loss(batch, out)["apa"]
    assert torch.equal(client.model.bn.running_mean, before)  # the extra pass leaves the statistics alone
    assert int(client.model.bn.num_batches_tracked) == 0
    assert client.model.bn.track_running_stats
    gammas, partners = draws(batch.labels.tolist(), 0.4)
    mixed = torch.stack(
        [g * batch.images[i] + (1 - g) * batch.images[j] for i, (g, j) in enumerate(zip(gammas, partners, strict=True))]
    )
    of_mixed, labels = client.model.features(mixed).tolist(), batch.labels.tolist()
    means = {k: plain_mean([h for h, y in zip(of_mixed, labels, strict=True) if y == k]) for k in set(labels)}
    assert value.item() == pytest.approx(plain_apa(out.features.tolist(), labels, means), rel=1e-5)


def test_scope_epoch_takes_the_last_epochs_prototypes():
    client = make_client("i2pfl", {"scope": "epoch", "mixup": "off"})
    first, second = make_batch([0, 1, 0], epoch=0), make_batch([0, 2], epoch=0)
    outs = [make_output(first, seed=1), make_output(second, seed=2)]
    means, counts = client.augmented(first, outs[0])  # nothing before: the batch's own
    assert counts.tolist() == [2, 1, 0, 0]
    client.augmented(second, outs[1])
    later = make_batch([3, 1], epoch=1)
    means, counts = client.augmented(later, make_output(later, seed=3))
    assert counts.tolist() == [3, 1, 1, 0]
    zeros = torch.stack([outs[0].features[0], outs[0].features[2], outs[1].features[0]])
    torch.testing.assert_close(means[0], zeros.mean(0).detach())
    assert not means.requires_grad


def test_detach_stops_the_gradient_through_the_prototypes():
    grads = []
    for detach in (True, False):
        batch, out, _, _ = loss_case("usual")
        make_client("i2pfl", {"detach": detach}).loss(batch, out)["apa"].backward()
        grads.append(out.features.grad)
    assert not torch.allclose(*grads)


# ---- server ---------------------------------------------------------------------------------------------------


def plain_reweight(vectors):
    """Eqs. 3 and 4."""
    mu = plain_mean(vectors)
    distances = [sum((a - b) ** 2 for a, b in zip(p, mu, strict=True)) for p in vectors]
    if len(vectors) == 1 or sum(distances) <= 1e-12:
        return mu
    return [sum(d / sum(distances) * p[v] for d, p in zip(distances, vectors, strict=True)) for v in range(len(mu))]


@pytest.mark.parametrize("name", SERVER_CASES)
@pytest.mark.parametrize(("how", "plain"), [("reweight", plain_reweight), ("average", plain_mean)])
@pytest.mark.parametrize(("ema", "weight"), [("new", 0.99), ("past", 0.01), ("off", 1.0)])
def test_generalized_prototypes(name, how, plain, ema, weight):
    server = make_server("i2pfl", {"aggregation": how, "ema": ema}, counts=[20] * 5)
    past = None
    for seed in (3, 4):
        uploads = prototype_uploads(**SERVER_CASES[name], seed=seed)
        assert all(Guard(server).problem(upload) is None for upload in uploads)
        server.aggregate(iter(uploads))
        new = {k: plain(vectors) for k, vectors in by_class(uploads).items() if vectors}
        if past is not None:  # Eq. 5
            new = {k: [weight * a + (1 - weight) * b for a, b in zip(g, past[k], strict=True)] for k, g in new.items()}
        for k in range(CLASSES):
            assert bool(server.knowledge["present"][k]) == (k in new)
            expected = torch.tensor(new.get(k, [0.0] * DIM))
            torch.testing.assert_close(server.knowledge["global"][k], expected, rtol=1e-5, atol=1e-6)
        past = {k: server.knowledge["global"][k].tolist() for k in new}


def test_a_class_that_nobody_sends_again_keeps_its_prototype():
    server = make_server("i2pfl")
    server.aggregate(iter(prototype_uploads([range(4)] * 3)))
    before = server.knowledge["global"][3].clone()
    server.aggregate(iter(prototype_uploads([range(3)] * 3, seed=9)))
    assert torch.equal(server.knowledge["global"][3], before)
    assert server.knowledge["present"].all()


@pytest.mark.parametrize("name", SERVER_CASES)
def test_clustering(name):
    server = make_server("i2pfl", {"aggregation": "cluster"}, counts=[20] * 5)
    uploads = prototype_uploads(**SERVER_CASES[name])
    server.aggregate(iter(uploads))
    expected = []
    for k, vectors in by_class(uploads).items():
        labels = plain_finch(vectors)
        for c in range(max(labels, default=-1) + 1):
            expected.append((k, plain_mean([v for v, mine in zip(vectors, labels, strict=True) if mine == c])))
    assert server.knowledge["cluster_labels"].tolist() == [k for k, _ in expected]
    torch.testing.assert_close(server.knowledge["clusters"], torch.tensor([v for _, v in expected]))
    batch, out, _, _ = loss_case("usual")
    value = make_client("i2pfl", {"tau": 0.1}, knowledge=server.knowledge).loss(batch, out)["gpcl"]
    plain = plain_contrast(
        out.features.tolist(), batch.labels.tolist(), [v for _, v in expected], [k for k, _ in expected], 0.1
    )
    assert value.item() == pytest.approx(plain, rel=1e-5)


# ---- whole rounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mixup": "input", "detach": False},
        {"mixup": "off", "scope": "epoch"},
        {"aggregation": "cluster", "gamma": "sample", "apa": "class"},
        {"proto_pass": "eval_pass", "ema": "past"},
    ],
)
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    chosen = [[0, 1, 2], [1, 2], [0, 1]]
    server, _, uploads = run_rounds("i2pfl", options, rounds=3, chosen=chosen, splits=splits)
    assert "gpcl" not in uploads[0][0].metrics
    assert {"ce", "apa", "gpcl"} <= set(uploads[2][0].metrics)
    assert all(torch.isfinite(tensor).all() for tensor in server.state().values())


@pytest.mark.parametrize("options", [{}, {"aggregation": "cluster"}])
def test_resume(options):
    check_resume("i2pfl", options)


def test_prototypes_are_the_last_epochs_features():
    client = make_client("i2pfl")
    seen = {}

    def observe(batch, out, before=client.observe):
        before(batch, out)
        if batch.epoch == 1:
            for z, y in zip(out.features.tolist(), batch.labels.tolist(), strict=True):
                seen.setdefault(y, []).append(z)

    client.observe = observe
    upload, memory = client.update()
    assert memory == {}
    assert upload.knowledge["counts"].tolist() == [5, 5, 5, 5]
    for k, vectors in seen.items():
        torch.testing.assert_close(upload.knowledge["prototypes"][k], torch.tensor(plain_mean(vectors)))


def test_the_papers_values():
    assert METHOD.params.by_task["pacs"] == {"tau": 0.04, "alpha": 0.2, "lambda_intra": 2.0}
    assert METHOD.params().ema_weight == 0.99


def test_an_upload_without_prototypes_is_refused():
    server = make_server("i2pfl", weights=dict(tiny().state_dict()))
    assert "is missing" in Guard(server).problem(make_upload(0, weights=server.weights))
