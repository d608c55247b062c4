"""FedCode against plain loops written from the paper's Eqs. 2-16; SAIN and the style encoder."""

import copy
import math

import pytest
import torch
from helpers import (
    CLASSES,
    DIM,
    LOSS_CASES,
    SERVER_CASES,
    by_class,
    check_resume,
    cosine,
    loss_case,
    make_client,
    make_context,
    make_server,
    make_split,
    make_upload,
    minus_log_share,
    plain_ce,
    plain_finch,
    plain_global,
    plain_mean,
    prototype_uploads,
    resnet,
    run_rounds,
    same_record,
    tiny,
)
from torch import nn

from protolith.data.augment import to_input
from protolith.errors import UserError
from protolith.federation.guards import Guard
from protolith.methods.fedcode import METHOD
from protolith.methods.with_style import Decoupled
from protolith.models.style import SAIN, StyleEncoder
from protolith.records import under_prefix

CPU = torch.device("cpu")


# ---- objective ------------------------------------------------------------------------------------------------


def style_case(name, clusters=3, cluster=1):
    """The shared cases with style features, style prototypes and the client's cluster."""
    batch, out, knowledge, tau = loss_case(name, tau=0.5)
    rng = torch.Generator().manual_seed(5)
    style = torch.rand(out.features.shape, dtype=torch.float64, generator=rng) * float(out.features.detach().any())
    styles = torch.rand(clusters, DIM, dtype=torch.float64, generator=rng)
    if name == "identical prototypes":
        styles[:] = styles[0].clone()
    decoupled = Decoupled(out.features, out.logits, style.requires_grad_())
    return batch, decoupled, {**knowledge, "styles": styles, "cluster": torch.tensor(cluster)}, tau


def plain_terms(batch, out, knowledge, tau, alpha, beta):
    """Eqs. 10-16, sample by sample."""
    prototypes, classes = plain_global(knowledge)
    styles, mine = knowledge["styles"].tolist(), int(knowledge["cluster"])
    style_centre, semantic_centre = plain_mean(styles), plain_mean(prototypes)
    semcl, stycl, fdr = [], [], []
    labels = batch.labels.tolist()
    for zc, zs, y in zip(out.features.tolist(), out.style.tolist(), labels, strict=True):
        if y in classes:  # Eq. 11: negatives are the other classes, z^s and the centre of the styles
            positive = cosine(zc, prototypes[classes.index(y)]) / tau
            negatives = [cosine(zc, g) / tau for k, g in zip(classes, prototypes, strict=True) if k != y]
            negatives += [cosine(zc, zs) / tau, cosine(zc, style_centre) / tau]
            semcl.append(minus_log_share([positive], [positive, *negatives]))
        positive = cosine(zs, styles[mine]) / tau  # Eq. 13
        negatives = [cosine(zs, p) / tau for j, p in enumerate(styles) if j != mine]
        negatives += [cosine(zs, zc) / tau, cosine(zs, semantic_centre) / tau]
        stycl.append(minus_log_share([positive], [positive, *negatives]))
        lengths = math.hypot(*zs) * math.hypot(*zc)  # Eq. 14
        fdr.append(sum(abs(a * b) for a, b in zip(zs, zc, strict=True)) / lengths if lengths else 0.0)
    return {
        "ce": plain_ce(out.logits.tolist(), labels),
        "fdr": beta * sum(fdr) / len(fdr),
        "semcl": alpha * sum(semcl) / len(semcl) if semcl else 0.0,
        "stycl": alpha * sum(stycl) / len(stycl),
    }


def client_of(options=None, **context):
    return make_client("fedcode", options, model=resnet(), **context)


@pytest.mark.parametrize("name", LOSS_CASES)
@pytest.mark.parametrize("clusters", [1, 3])
@pytest.mark.parametrize("stop", [False, True])
def test_objective(name, clusters, stop):
    batch, out, knowledge, tau = style_case(name, clusters, cluster=clusters - 1)
    client = client_of({"tau": tau, "alpha": 20, "beta": 3, "stop_gradient": stop}, knowledge=knowledge)
    terms = client.loss(batch, out)
    expected = plain_terms(batch, out, knowledge, tau, 20, 3)
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()
    assert torch.isfinite(out.style.grad).all()


def test_stop_gradient_holds_the_other_feature():
    for stop in (True, False):
        for term, other in (("semcl", "style"), ("stycl", "features")):
            batch, out, knowledge, _ = style_case("usual")
            client_of({"stop_gradient": stop}, knowledge=knowledge).loss(batch, out)[term].backward()
            assert (getattr(out, other).grad is None) == stop


@pytest.mark.parametrize(
    ("options", "terms"),
    [
        ({}, {"ce", "semcl", "stycl", "fdr"}),
        ({"stycl": False}, {"ce", "semcl", "fdr"}),
        ({"beta": 0}, {"ce", "semcl", "stycl"}),
        ({"semcl": False}, {"ce", "stycl", "fdr"}),
        ({"alpha": 0}, {"ce", "fdr"}),
        ({"alpha": 0, "beta": 0}, {"ce"}),
    ],
)
def test_tables_5_and_6(options, terms):
    batch, out, knowledge, _ = style_case("usual")
    assert set(client_of(options, knowledge=knowledge).loss(batch, out)) == terms


def test_round_0_and_newcomers():
    batch, out, knowledge, _ = style_case("usual")
    assert set(client_of().loss(batch, out)) == {"ce", "fdr"}
    del knowledge["cluster"]  # never seen by the server: no style term
    assert set(client_of(knowledge=knowledge).loss(batch, out)) == {"ce", "fdr", "semcl"}


# ---- SAIN and the style encoder -------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 5, 4, 4), (2, 20, 3, 5), (4, 3, 1, 1)])
def test_sain(shape):
    """Eqs. 5-7, pixel by pixel."""
    torch.manual_seed(0)
    sain = SAIN(shape[1]).double()
    x = torch.rand(shape, dtype=torch.float64) * 3
    out = sain(x)
    for n in range(shape[0]):
        normal = []
        for channel in x[n].tolist():
            pixels = [v for row in channel for v in row]
            mean = sum(pixels) / len(pixels)
            deviation = math.sqrt(sum((v - mean) ** 2 for v in pixels) / len(pixels) + 1e-5)
            normal.append([(v - mean) / deviation for v in pixels])
        style = x[n].flatten(1) - torch.tensor(normal, dtype=torch.float64)
        pooled = style.mean(dim=1)
        weights = torch.sigmoid(sain.excite(torch.relu(sain.squeeze(pooled))))
        torch.testing.assert_close(out[n].flatten(1), weights[:, None] * style)


def test_sain_keeps_a_map_of_one_pixel_and_has_a_finite_gradient():
    sain = SAIN(4)
    x = torch.cat([torch.rand(2, 4, 1, 1), torch.zeros(1, 4, 1, 1)]).requires_grad_()
    out = sain(x)
    weights = torch.sigmoid(sain.excite(torch.relu(sain.squeeze(x.flatten(1)))))
    torch.testing.assert_close(out.flatten(1), weights * x.flatten(1), rtol=1e-3, atol=1e-4)
    out.sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("spread", [0.001, 0.03, 1.0])
def test_sain_in_bfloat16_is_right_where_a_channel_hardly_varies(spread):
    """Eqs. 5-7 in float64, pixel by pixel, of the very pixels that bfloat16 holds."""
    torch.manual_seed(0)
    sain = SAIN(3)
    x = (1.0 + spread * torch.randn(2, 3, 6, 6)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = sain(x)
    assert out.dtype == torch.bfloat16
    exact = copy.deepcopy(sain).double()
    for n in range(2):
        pixels = [[v for row in channel for v in row] for channel in x[n].double().tolist()]
        means = plain_mean(list(zip(*pixels, strict=True)))
        hidden = torch.relu(exact.squeeze(torch.tensor(means, dtype=torch.float64)))
        weights = torch.sigmoid(exact.excite(hidden)).tolist()
        for c, channel in enumerate(pixels):
            deviation = math.sqrt(sum((v - means[c]) ** 2 for v in channel) / len(channel) + 1e-5)
            expected = [weights[c] * (v - (v - means[c]) / deviation) for v in channel]
            assert out[n, c].flatten().tolist() == pytest.approx(expected, rel=0.02, abs=0.02)


@pytest.mark.parametrize(("name", "norms"), [("resnet10", 12), ("resnet18", 20)])
@pytest.mark.parametrize("width", [2, 4])
def test_style_encoder(name, norms, width):
    model = resnet(name=name, width=width)
    encoder = StyleEncoder(model, seed=1)
    assert sum(isinstance(m, SAIN) for m in encoder.modules()) == norms
    assert not any(isinstance(m, nn.BatchNorm2d) for m in encoder.modules())
    assert sum(isinstance(m, nn.BatchNorm2d) for m in model.modules()) == norms  # the network itself is untouched
    features = encoder(torch.rand(2, 3, 16, 16))
    assert features.shape == (2, 8 * width)
    assert torch.isfinite(features).all()
    assert "head.weight" not in encoder.encoder.state_dict()


@pytest.mark.parametrize(("stages", "norms"), [((), 0), ((0,), 1), ((1,), 2), ((0, 4), 4)])
def test_stages(stages, norms):
    encoder = StyleEncoder(resnet(), seed=1, stages=stages)
    assert sum(isinstance(m, SAIN) for m in encoder.modules()) == norms
    assert sum(isinstance(m, nn.BatchNorm2d) for m in encoder.modules()) == 12 - norms


def test_the_first_style_encoder_depends_on_the_run_alone():
    one = client_of(client=0, seed=1, run_seed=3).style.state_dict()
    trained = resnet()
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(1)
    other = make_client("fedcode", model=trained, client=1, seed=2, run_seed=3).style.state_dict()
    same_record(dict(one), dict(other))
    third = client_of(run_seed=4).style.state_dict()
    assert not torch.equal(one["encoder.conv1.weight"], third["encoder.conv1.weight"])
    assert not torch.equal(one["encoder.conv1.weight"], resnet().state_dict()["conv1.weight"])


def test_another_network_is_refused():
    with pytest.raises(UserError, match=r"resnet10, resnet18"):
        METHOD.client(make_context("fedcode", model=tiny()))


# ---- client ---------------------------------------------------------------------------------------------------


def test_prototypes_of_a_pass_after_training():
    data = make_split((0, 1, 1, 3, 0), size=16)
    client = client_of(data=data)
    upload, _ = client.update()
    with torch.no_grad():
        images = to_input(data.images, CPU)
        semantic, style = client.model.eval().features(images), client.style.eval()(images)
    assert upload.knowledge["counts"].tolist() == [2, 2, 0, 1]
    torch.testing.assert_close(upload.knowledge["prototypes"][1], semantic[1:3].mean(0))  # Eq. 2
    assert not upload.knowledge["prototypes"][2].any()
    torch.testing.assert_close(upload.knowledge["style"], style.mean(0))  # Eq. 8


def test_prototypes_of_the_last_epoch():
    plain, _ = client_of({"proto_pass": "eval_pass"}, data=make_split(size=16)).update()
    upload, _ = client_of({"proto_pass": "last_epoch_train"}, data=make_split(size=16)).update()
    assert upload.knowledge["counts"].tolist() == [5] * CLASSES
    assert not torch.allclose(upload.knowledge["prototypes"], plain.knowledge["prototypes"])
    assert not torch.allclose(upload.knowledge["style"], plain.knowledge["style"])


@pytest.mark.parametrize("share", [False, True])
def test_memory(share):
    client = client_of({"share_head": share}, data=make_split(size=16))
    before = {name: tensor.clone() for name, tensor in client.style.state_dict().items()}
    upload, memory = client.update()
    assert set(under_prefix("own", memory)) == (set() if share else {"head.weight", "head.bias"})
    same_record(under_prefix("style", memory), dict(client.style.state_dict()))
    changed = [name for name, tensor in before.items() if not torch.equal(tensor, client.style.state_dict()[name])]
    assert len(changed) > len(before) / 2  # it was trained
    again = client_of({"share_head": share}, memory=memory, weights=resnet(seed=5).state_dict())
    again.start()
    same_record(dict(again.style.state_dict()), under_prefix("style", memory))
    own = torch.equal(again.model.head.weight, upload.weights["head.weight"])
    assert own != share
    assert torch.equal(again.model.conv1.weight, resnet(seed=5).conv1.weight)


# ---- server ---------------------------------------------------------------------------------------------------


def style_uploads(held, seed=3, identical=False, clients=None):
    """Prototype uploads with a style each."""
    uploads = prototype_uploads(held, seed=seed, identical=identical)
    rng = torch.Generator().manual_seed(seed + 50)
    common = torch.rand(DIM, generator=rng)
    styled = []
    for upload, client in zip(uploads, clients or range(len(uploads)), strict=True):
        style = common.clone() if identical else torch.rand(DIM, generator=rng)
        styled.append(make_upload(client, count=upload.count, style=style, **upload.knowledge))
    return styled


@pytest.mark.parametrize("name", SERVER_CASES)
@pytest.mark.parametrize("partition", ["last", "first"])
def test_dual_prototypes(name, partition):
    server = make_server("fedcode", {"partition": partition}, counts=[20] * 5)
    uploads = style_uploads(**SERVER_CASES[name])
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    for k, vectors in by_class(uploads).items():  # Eq. 4
        assert bool(server.knowledge["present"][k]) == bool(vectors)
        if vectors:
            torch.testing.assert_close(server.knowledge["global"][k], torch.tensor(plain_mean(vectors)))
    styles = [upload.knowledge["style"].tolist() for upload in uploads]
    clusters = plain_finch(styles, partition)  # Eq. 9
    means = [plain_mean([s for s, c in zip(styles, clusters, strict=True) if c == j]) for j in range(max(clusters) + 1)]
    torch.testing.assert_close(server.knowledge["styles"], torch.tensor(means))
    for upload, cluster in zip(uploads, clusters, strict=True):
        assert int(server.broadcast(upload.client).knowledge["cluster"]) == cluster


def test_a_client_that_was_away_has_a_cluster_that_exists():
    server = make_server("fedcode", counts=[20] * 6)
    server.aggregate(iter(style_uploads([range(4)] * 5)))
    assert "cluster" not in server.broadcast(5).knowledge
    styles = server.extra["styles"].clone()
    server.aggregate(iter(style_uploads([range(4)] * 2, seed=8, clients=[1, 3])))
    assert "cluster" not in server.broadcast(5).knowledge
    for client in (0, 2, 4):
        assert torch.equal(server.extra["styles"][client], styles[client])
    clusters = plain_finch(server.extra["styles"][:5].tolist())
    assert [int(server.broadcast(client).knowledge["cluster"]) for client in range(5)] == clusters
    assert len(server.knowledge["styles"]) == max(clusters) + 1


@pytest.mark.parametrize("share", [False, True])
def test_the_head_goes_out_once(share):
    server, _, uploads = run_rounds(
        "fedcode", {"share_head": share}, rounds=1, chosen=[[0, 1]], model=resnet(), splits=[make_split()] * 3
    )
    assert "head.weight" in server.broadcast(2).weights
    assert ("head.weight" in server.broadcast(0).weights) == share
    assert server.broadcast(0).weights is server.broadcast(1).weights  # one record, written once
    mean = torch.stack([upload.weights["head.weight"] for upload in uploads[0]]).mean(0)
    torch.testing.assert_close(server.weights["head.weight"], mean)  # the global model that is tested


# ---- whole rounds ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stages": [], "share_head": True},
        {"proto_pass": "last_epoch_train", "stages": [1, 2], "stop_gradient": True},
        {"alpha": 100, "tau": 0.07, "partition": "first"},
    ],
)
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    server, memories, uploads = run_rounds(
        "fedcode", options, rounds=3, chosen=[[0, 1], [1, 2], [0, 2]], splits=splits, model=resnet()
    )
    assert set(uploads[0][0].metrics) == {"ce", "fdr"}
    assert set(uploads[1][0].metrics) == {"ce", "fdr", "semcl", "stycl"}
    assert set(uploads[1][1].metrics) == {"ce", "fdr", "semcl"}  # client 2 was never seen before
    assert all(torch.isfinite(tensor).all() for tensor in server.state().values())
    assert set(memories) == {0, 1, 2}


def test_resume():
    check_resume("fedcode", model=resnet(), splits=[make_split(seed=seed) for seed in range(2)])


def test_the_papers_values():
    assert METHOD.params().alpha == 20
    assert METHOD.params.by_task["pacs"]["alpha"] == 100
    with pytest.raises(ValueError, match="less than or equal to 4"):
        METHOD.params(stages=(5,))
