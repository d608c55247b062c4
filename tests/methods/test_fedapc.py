"""FedAPC against plain loops written from the paper's Eqs. 2-6, and the erasing of rectangles."""

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
    plain_contrast,
    plain_global,
    plain_mean,
    prototype_uploads,
    run_rounds,
)

from protolith.data.augment import erase, to_input
from protolith.data.domain import MEAN
from protolith.federation.guards import Guard
from protolith.methods.fedapc import METHOD

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", LOSS_CASES)
def test_objective(name):
    batch, out, knowledge, tau = loss_case(name)
    terms = make_client("fedapc", {"tau": tau}, knowledge=knowledge).loss(batch, out)
    features, labels = out.features.tolist(), batch.labels.tolist()
    expected = {
        "ce": plain_ce(out.logits.tolist(), labels),
        "apc": plain_contrast(features, labels, *plain_global(knowledge), tau),
    }
    assert {k: v.item() for k, v in terms.items()} == pytest.approx(expected, rel=1e-9, abs=1e-12)
    sum(terms.values()).backward()
    assert torch.isfinite(out.features.grad).all()


def test_round_0_is_cross_entropy():
    batch, out, _, _ = loss_case("usual")
    assert set(make_client("fedapc").loss(batch, out)) == {"ce"}


@pytest.mark.parametrize("name", SERVER_CASES)
def test_global_prototypes_have_the_direction_of_the_sum(name):
    """Eq. 4 prints the sum; only cosines are used of it."""
    server = make_server("fedapc", counts=[20] * 5)
    uploads = prototype_uploads(**SERVER_CASES[name])
    assert all(Guard(server).problem(upload) is None for upload in uploads)
    server.aggregate(iter(uploads))
    for k, vectors in by_class(uploads).items():
        assert bool(server.knowledge["present"][k]) == bool(vectors)
        expected = torch.tensor(plain_mean(vectors)) if vectors else torch.zeros(DIM)
        torch.testing.assert_close(server.knowledge["global"][k], expected)
    absent = ~server.knowledge["present"]
    server.aggregate(iter(prototype_uploads([(0,)], seed=8)))
    assert torch.equal(server.knowledge["present"], ~absent | (torch.arange(CLASSES) == 0))


def plain_prototypes(client, labels, views):
    """Eqs. 2 and 3 with the views that the client saw: [view][image] -> features, in order."""
    sums = {}
    for i, y in enumerate(labels):
        sums.setdefault(y, []).append(plain_mean([view[i] for view in views]))
    return {y: plain_mean(vectors) for y, vectors in sums.items()}


@pytest.mark.parametrize("views", [1, 3])
def test_augmented_prototypes(views):
    data = make_split((0, 1, 1, 3, 0), size=16)
    client = make_client("fedapc", {"views": views}, data=data)
    seen = []

    def view(images, before=client.view):
        seen.append(before(images))
        return seen[-1]

    client.view = view
    upload, _ = client.update()
    assert len(seen) == views
    assert upload.knowledge["counts"].tolist() == [2, 2, 0, 1]  # images, not views
    client.model.eval()
    with torch.no_grad():
        features = [client.model.features(to_input(images, CPU)).tolist() for images in seen]
    for k, expected in plain_prototypes(client, data.labels.tolist(), features).items():
        torch.testing.assert_close(upload.knowledge["prototypes"][k], torch.tensor(expected))
    assert not any(torch.equal(images, data.images) for images in seen)


def test_without_augmentation_prototypes_are_those_of_plain_images():
    data = make_split((0, 1, 1, 3, 0))
    client = make_client("fedapc", {"augment": False}, data=data)
    upload, _ = client.update()
    with torch.no_grad():
        features = client.model.eval().features(to_input(data.images, CPU))
    torch.testing.assert_close(upload.knowledge["prototypes"][1], features[1:3].mean(0))


@pytest.mark.parametrize("augment", [True, False])
def test_prototypes_in_the_last_epoch(augment):
    """Alg. 1, line 14: batch by batch; the extra passes leave BatchNorm's statistics alone."""
    client = make_client("fedapc", {"proto_pass": "last_epoch_train", "augment": augment})
    upload, _ = client.update()
    assert upload.knowledge["counts"].tolist() == [5] * CLASSES
    assert int(client.model.bn.num_batches_tracked) == 6  # two epochs of three batches
    plain, _ = make_client("fedapc", {"proto_pass": "eval_pass", "augment": augment}).update()
    assert not torch.allclose(upload.knowledge["prototypes"], plain.knowledge["prototypes"])


@pytest.mark.parametrize("options", [{}, {"augment": False}, {"proto_pass": "last_epoch_train", "views": 2}])
def test_rounds(options):
    splits = [make_split(), make_split((0, 1, 2) * 4, seed=1), make_split((1, 1, 1), seed=2)]
    server, _, uploads = run_rounds("fedapc", options, rounds=3, chosen=[[0, 1, 2], [1, 2], [0, 1]], splits=splits)
    assert set(uploads[0][0].metrics) == {"ce"}
    assert set(uploads[2][0].metrics) == {"ce", "apc"}
    assert all(torch.isfinite(tensor).all() for tensor in server.state().values())


def test_resume():
    check_resume("fedapc")


def test_the_tasks_values():
    assert METHOD.params.by_task["digits"]["tau"] == 0.07
    assert METHOD.params.by_task["office10"]["tau"] == 0.02
    assert METHOD.params().views == 3


# ---- erasing --------------------------------------------------------------------------------------------------


def erased(probability=1.0, n=200, **shape):
    images = torch.ones(n, 32, 24, 3, dtype=torch.uint8)
    out = erase(images, torch.Generator().manual_seed(0), probability, **shape)
    assert out.dtype == torch.uint8
    assert out.shape == images.shape
    return (out != images).any(dim=3), out


def test_erasing_fills_one_rectangle():
    changed, out = erased()
    colour = torch.tensor(MEAN).mul(255).round().to(torch.uint8)
    for mask, image in zip(changed, out, strict=True):
        rows, columns = mask.any(1).nonzero().squeeze(1), mask.any(0).nonzero().squeeze(1)
        assert int(mask.sum()) == (int(rows[-1] - rows[0]) + 1) * (int(columns[-1] - columns[0]) + 1)
        assert (image[mask] == colour).all()


def test_erasing_keeps_to_its_share():
    share = erased()[0].float().mean(dim=(1, 2))
    assert float(share.min()) > 0.01
    assert float(share.max()) < 0.36  # whole pixels
    assert 0.12 < float(share.mean()) < 0.22


def test_erasing_half_of_the_images():
    touched = erased(0.5, n=1000)[0].flatten(1).any(1).float().mean()
    assert 0.44 < float(touched) < 0.56
    assert not erased(0.0)[0].any()


def test_erasing_reaches_every_pixel_and_repeats_with_the_seed():
    changed, out = erased(n=5000)
    assert changed.any(0).all()
    assert torch.equal(out, erased(n=5000)[1])


def test_erasing_a_fixed_shape():
    changed, _ = erased(area=(0.25, 0.25), ratio=(1.0, 1.0))
    side = round((0.25 * 32 * 24) ** 0.5)
    assert (changed.any(2).sum(1) == side).all()
    assert (changed.any(1).sum(1) == side).all()
