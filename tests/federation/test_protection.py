"""Nothing is sent unprotected in silence: a method is covered by `privacy`, or refused with it."""

from dataclasses import replace

import pytest
import torch

from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.federation.guards import Guard
from protolith.federation.layers.privacy import PrivacyLayer
from protolith.federation.local_update import Workplace
from protolith.methods.base import Spec
from protolith.methods.registry import all_methods, get_method
from protolith.prototypes.privacy import Privacy
from protolith.runs.config import complete_for, resolve

PROTECTED = ["fedapc", "fedproc", "fedproto", "fpl", "i2pfl"]
NOISY = {"noise": 1.0, "clip": 3.0}


@pytest.fixture(scope="module")
def task():
    return load_task("mini")


def place(task, method, privacy, secret=False, **others):
    pass_ = {"params": {"proto_pass": "eval_pass"}} if "proto_pass" in get_method(method).params.model_fields else {}
    values = {
        "method": method,
        "rounds": 3,
        "model": {"width": 4},
        "training": {"epochs": 1, "batch": 16},
        "protocol": {"clients": {"pen": 1, "print": 1}, "samples": 30},
        "privacy": privacy,
        **pass_,
        **others,
    }
    return Workplace(complete_for(resolve([values]), task), task, secret)


def first_upload(workplace, round_=0, client=0):
    server = workplace.server()
    upload, _ = workplace.update(client, round_, server.broadcast(client), {})
    assert Guard(server).problem(upload) is None
    return upload


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_a_method_is_protected_or_refused(task, method):
    if method in PROTECTED:
        assert first_upload(place(task, method, NOISY)).knowledge.keys() == {"prototypes", "counts"}
        return
    for privacy in (NOISY, {"clip": 1.0}, {"least": 5}):
        with pytest.raises(UserError, match=f"privacy is not for method '{method}', which sends .*; it is for fedapc"):
            place(task, method, privacy)


def test_the_sentence_says_why(task):
    with pytest.raises(UserError, match="sends no prototypes, and weights are not protected"):
        place(task, "fedavg", NOISY)
    for method in ("fedpac", "fedplvm", "fedcode", "fedproto-original"):
        with pytest.raises(UserError, match="more than class means, or the class means of a network that stays"):
            place(task, method, NOISY)


FPL = get_method("fpl")


class Adds(FPL.client):
    def upload(self):
        return super().upload().with_knowledge(prototypes=torch.zeros(1))


class Collects(FPL.client):
    def _collect(self, features, labels):
        self.means.add(features, labels)


class Passes(FPL.client):
    def pass_over_data(self):
        self._collect(self.model.features(self.data.images), self.data.labels)


class Names(FPL.client):
    def prototypes(self):
        return {"prototypes": self.means.means(), "counts": self.means.counts}


class Expects(FPL.server):
    def schema(self):
        return {**super().schema(), "more": Spec((3,))}


@pytest.mark.parametrize(
    "changed",
    [{"client": Adds}, {"client": Collects}, {"client": Passes}, {"client": Names}, {"server": Expects}],
    ids=["adds", "collects", "passes", "names", "expects"],
)
def test_a_method_of_ones_own_is_refused_where_it_goes_another_way(changed):
    """Its own loss is its own affair; whatever it changes on the way of the class means is not covered."""
    layer, params = PrivacyLayer(Privacy(**NOISY), False), FPL.params(proto_pass="eval_pass")
    assert layer.refuses(replace(FPL, name="mine"), params, [layer]) is None
    assert "method 'mine'" in layer.refuses(replace(FPL, name="mine", **changed), params, [layer])


@pytest.mark.parametrize("method", ["fpl", "i2pfl"])
def test_prototypes_of_a_training_pass_get_no_noise(task, method):
    """BatchNorm mixes the images of a batch there, so that clipping would bound nothing."""
    with pytest.raises(UserError, match=r"needs params\.proto_pass = 'eval_pass'"):
        place(task, method, NOISY, params={"proto_pass": "last_epoch_train"})
    place(task, method, {"clip": 1.0, "least": 2}, params={"proto_pass": "last_epoch_train"})


@pytest.mark.parametrize("method", PROTECTED)
def test_a_wide_bound_without_noise_changes_nothing(task, method):
    plain, wide = (first_upload(place(task, method, privacy)) for privacy in ({}, {"clip": 1e9}))
    assert same(plain.knowledge, wide.knowledge) and same(plain.weights, wide.weights)


@pytest.mark.parametrize("method", PROTECTED)
def test_noise_changes_the_prototypes_and_not_the_weights(task, method):
    plain, noisy = (first_upload(place(task, method, privacy)) for privacy in ({}, NOISY))
    assert same(plain.weights, noisy.weights)
    assert not torch.equal(plain.knowledge["prototypes"], noisy.knowledge["prototypes"])
    assert not torch.equal(plain.knowledge["counts"], noisy.knowledge["counts"])


def test_what_is_sent_is_the_mechanism_on_the_features_of_the_sent_network(task):
    """FPL's prototypes from a plain loop over images, with the noise that belongs to seed, round and client."""
    from protolith.data.augment import to_input
    from protolith.models.saved import load_weights
    from protolith.prototypes.privacy import SENSITIVITY
    from protolith.seeds import derive, generator

    workplace = place(task, "fpl", {"noise": 0.5, "clip": 0.4}, seed=3)
    upload = first_upload(workplace, round_=1, client=1)
    load_weights(workplace.model, upload.weights)
    workplace.model.eval()
    data = workplace.client_data(1)
    dim = upload.knowledge["prototypes"].shape[1]
    sums, counts = torch.zeros(10, dim, dtype=torch.float64), torch.zeros(10, dtype=torch.float64)
    with torch.inference_mode():
        for image, label in zip(data.images, data.labels.tolist(), strict=True):
            feature = workplace.model.features(to_input(image[None], workplace.device))[0].double()
            sums[label] += feature * min(1.0, 0.4 / float(feature.norm()))
            counts[label] += 1
    rng = generator(derive(3, "round", 1, "client", 1), "privacy")
    sums += 0.5 * SENSITIVITY * 0.4 * torch.randn(10, dim, generator=rng, dtype=torch.float64)
    counts += 0.5 * SENSITIVITY * torch.randn(10, generator=rng, dtype=torch.float64)
    for k in range(10):
        row = sums[k] / max(float(counts[k]), 1.0) if counts[k] >= 1 else torch.zeros(dim)
        torch.testing.assert_close(upload.knowledge["prototypes"][k], row.float(), rtol=1e-4, atol=1e-5)
        assert int(upload.knowledge["counts"][k]) == (round(float(counts[k])) if counts[k] >= 1 else 0)


def test_noise_follows_from_seed_round_and_client_unless_it_is_secret(task):
    first, again = (first_upload(place(task, "fpl", NOISY)) for _ in range(2))
    assert same(first.knowledge, again.knowledge)
    secret, other = (first_upload(place(task, "fpl", NOISY, secret=True)) for _ in range(2))
    assert same(secret.weights, other.weights) and same(secret.weights, first.weights)
    assert not torch.equal(secret.knowledge["prototypes"], other.knowledge["prototypes"])
    assert not torch.equal(secret.knowledge["prototypes"], first.knowledge["prototypes"])


@pytest.mark.parametrize("method", PROTECTED)
def test_rounds_in_which_no_class_is_sent(task, method):
    """Every class is below the threshold: the method goes on without prototypes."""
    workplace = place(task, method, {"least": 10**6})
    server = workplace.server()
    for round_ in range(3):
        server.begin(round_)
        uploads = [workplace.update(client, round_, server.broadcast(client), {})[0] for client in range(2)]
        for upload in uploads:
            assert Guard(server).problem(upload) is None
            assert not upload.knowledge["counts"].any() and not upload.knowledge["prototypes"].any()
            assert torch.isfinite(torch.tensor(list(upload.metrics.values()))).all()
            assert all(torch.isfinite(tensor.double()).all() for tensor in upload.weights.values())
        server.aggregate(iter(uploads))
