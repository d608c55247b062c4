"""Strata and style exchange: clusters, weights, and what it does to every other method."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import Together, make_context, make_layers, make_server, make_split, make_upload
from safetensors.torch import load_file

from protolith.data.domain import Split
from protolith.data.protocols import Allocation, Client
from protolith.data.styles import style_of
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.experiments.sweep import job_name
from protolith.federation.coordinator import Coordinator
from protolith.federation.layers import styles as layer
from protolith.federation.layers.styles import BEFORE, CLUSTER, OWN, STYLE, STYLES, other_styles
from protolith.federation.local_update import Workplace
from protolith.federation.setup import Setup
from protolith.methods import fedavg, registry
from protolith.methods.registry import all_methods
from protolith.records import Broadcast, Upload, with_prefix
from protolith.runs import runner
from protolith.runs.config import RunConfig, complete_for, parse_set, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer


def style(level, noise=0.0, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return (torch.full((12,), float(level)) + noise * torch.randn(12, generator=rng)).clamp(0, 1)


def styled_uploads(levels, counts, values=None):
    return [
        make_upload(
            client,
            count=count,
            weights={"w": torch.full((2,), float(client if values is None else values[client]))},
            **{STYLE: style(level, 0.002, client)},
        )
        for client, (level, count) in enumerate(zip(levels, counts, strict=True))
    ]


def groups(labels):
    """Who is with whom, whatever the numbers."""
    labels = labels.tolist()
    return {frozenset(i for i, label in enumerate(labels) if label == one) for one in labels}


def pseudo_domains(styles, counts=None):
    """Of clients with three images each, unless said otherwise: differences are then hardly ever beyond chance."""
    return layer.pseudo_domains(styles, torch.tensor(counts or [3] * len(styles)))


BOTH = {"style_exchange": 0.8, "style_balance": True}


def strata(counts=(20, 20, 20), **training):
    return Together(make_server("strata", counts=counts), make_layers(counts, **(BOTH | training)))


def cluster(together):
    return together.layers.state()[CLUSTER]


def test_pseudo_domains_are_found_without_labels():
    styles = torch.stack([style(level, 0.01, i) for i, level in enumerate([0.2, 0.2, 0.2, 0.7, 0.7, 0.45])])
    styles[5, :3] = torch.tensor([0.9, 0.1, 0.1])  # nobody looks like this one
    assert groups(pseudo_domains(styles)) == {frozenset({0, 1, 2}), frozenset({3, 4}), frozenset({5})}
    assert pseudo_domains(styles).tolist() == [0, 0, 0, 1, 1, 2]  # numbered by their first members


def test_sites_that_differ_by_more_than_chance_stand_alone():
    """Two or three sites, which FINCH joins in every case: apart by 0.1 with a deviation of 0.2 between images."""
    for sites in (2, 3):
        styles = torch.stack(
            [torch.cat([torch.full((6,), 0.3 + 0.1 * i), torch.full((6,), 0.2)]) for i in range(sites)]
        )
        # the standard error of a difference is 0.2 · √(2 / n): 0.1 is 3.5 of them with 100 images and 5 with 200
        assert pseudo_domains(styles, [100] * sites).tolist() == [0] * sites
        assert pseudo_domains(styles, [200] * sites).tolist() == list(range(sites))


@pytest.mark.parametrize("clients", [1, 2, 3, 30])
def test_identical_styles_are_one_pseudo_domain(clients):
    assert pseudo_domains(style(0.4).expand(clients, 12)).tolist() == [0] * clients


def test_every_style_has_exactly_one_cluster():
    for seed in range(50):
        rng = torch.Generator().manual_seed(seed)
        n = int(torch.randint(1, 40, (1,), generator=rng))
        labels = pseudo_domains(torch.rand(n, 12, generator=rng))
        assert sorted(set(labels.tolist())) == list(range(int(labels.max()) + 1)) and len(labels) == n


def test_round_0_is_fedavg_and_later_rounds_are_balanced():
    counts, levels = [30, 10, 20, 5], [0.2, 0.2, 0.2, 0.8]
    together = strata(counts)
    server = together.server
    together.aggregate(styled_uploads(levels, counts))
    assert float(server.weights["w"][0]) == pytest.approx((0 * 30 + 1 * 10 + 2 * 20 + 3 * 5) / 65)
    assert groups(cluster(together)) == {frozenset({0, 1, 2}), frozenset({3})}
    weights = together.weights_of(styled_uploads(levels, counts))
    assert [w / sum(weights) for w in weights] == pytest.approx([0.5 * 30 / 60, 0.5 * 10 / 60, 0.5 * 20 / 60, 0.5])
    together.aggregate(styled_uploads(levels, counts))
    assert float(server.weights["w"][0]) == pytest.approx(0.5 * (10 * 1 + 20 * 2) / 60 + 0.5 * 3)


def test_balanced_weights_sum_to_one_and_are_equal_per_cluster():
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        m = int(torch.randint(2, 25, (1,), generator=rng))
        counts = torch.randint(1, 100, (m,), generator=rng).tolist()
        levels = torch.randint(1, 5, (m,), generator=rng).div(5).tolist()
        together = strata(counts)
        uploads = styled_uploads(levels, counts)
        together.aggregate(uploads)
        weights = together.weights_of(uploads)
        labels = cluster(together).tolist()
        clusters = sorted(set(labels))
        for one in clusters:
            share = sum(w for w, label in zip(weights, labels, strict=True) if label == one) / sum(weights)
            assert share == pytest.approx(1 / len(clusters))


def test_a_newcomer_counts_as_of_a_domain_of_average_size():
    counts = [30, 10, 20, 20]
    together = strata(counts)
    together.aggregate(styled_uploads([0.2, 0.2, 0.8], counts[:3]))
    newcomer = make_upload(3, count=20)
    assert together.weights_of([newcomer]) == [pytest.approx(20 / ((40 + 20) / 2))]
    assert int(together.broadcast(3).knowledge[OWN]) == -1


def test_without_balance_the_weights_are_fedavgs():
    counts = [30, 10, 20]
    together = strata(counts, style_balance=False)
    uploads = styled_uploads([0.2, 0.2, 0.8], counts)
    together.aggregate(uploads)
    assert together.weights_of(uploads) == [30, 10, 20]


def test_a_client_sends_its_style_and_paints_with_the_others():
    dark = make_split()
    dark = Split(dark.images // 8, dark.labels)
    layers = make_layers([20], style_exchange=1.0)
    upload = layers.upload(make_upload(0), make_context("strata", data=dark))
    assert torch.equal(upload.knowledge[STYLE], style_of(dark.images)) and upload.knowledge[STYLE].shape == (12,)
    bright = torch.cat([torch.full((6,), 0.9), torch.zeros(6)])
    knowledge = {STYLES: torch.stack([style_of(dark.images), bright]), OWN: torch.tensor(0)}
    assert torch.equal(other_styles(knowledge), bright[None])
    client = replace(make_context("strata", data=dark, knowledge=knowledge), layers=layers)
    assert fedavg.Client(client).restyle(dark.images).float().mean() > 3 * dark.images.float().mean()
    never = make_layers([20], style_balance=True)
    assert torch.equal(never.images(dark.images, client), dark.images)
    assert torch.equal(layers.images(dark.images, make_context("strata")), dark.images)  # round 0


def test_one_cluster_is_everybodys_style():
    assert len(other_styles({STYLES: style(0.5)[None], OWN: torch.tensor(0)})) == 1


def test_uploads_without_a_proper_style_are_refused():
    guard = strata()
    assert guard.problem(make_upload(0, **{STYLE: style(0.3)})) is None
    assert "missing" in guard.problem(make_upload(0))
    for bad, word in (
        (torch.full((12,), 2.0), "above 1"),
        (torch.full((12,), -0.1), "below 0"),
        (style(0.3)[:11], "shape"),
    ):
        assert word in guard.problem(make_upload(0, **{STYLE: bad}))


def resumed(together, state):
    """A coordinator that goes on from a state, with a server and layers of its own."""
    again = strata(together.server.roster.counts)
    allocation = Allocation(tuple(Client(i, f"d-{i}", "d", torch.arange(20)) for i in range(3)), ())
    c = Coordinator(Setup(), allocation, again.server, None, Path(), layers=again.layers)
    c.load_state(state)
    return c


@pytest.mark.parametrize("version", ["today", "before layers"])
def test_a_resumed_run_goes_on_as_if_nothing_had_happened(version):
    """Also from a checkpoint of a version in which the method's server kept styles and clusters."""
    counts, levels = [20, 20, 20], [0.2, 0.2, 0.8]
    together = strata(counts)
    uploads = styled_uploads(levels, counts)
    together.aggregate(uploads[:2])
    state = {**together.server.state(), **with_prefix("layers", together.layers.state())}
    if version == "before layers":
        old = {f"layers/{new}": old for old, new in BEFORE.items()}
        assert set(old) <= set(state)
        state = {old.get(name, name): tensor for name, tensor in state.items()}
        assert sum("exchange/" in name for name in state) == 3
    c = resumed(together, state)
    for _ in range(2):
        for client in range(3):
            one, other = together.broadcast(client), c.broadcast(client)
            assert other.knowledge.keys() == one.knowledge.keys() == {STYLES, OWN}
            assert all(torch.equal(other.knowledge[name], one.knowledge[name]) for name in one.knowledge)
            assert torch.equal(other.weights["w"], one.weights["w"])
        together.aggregate(uploads)
        c.server.aggregate(c.layers.receive(iter(uploads)))


def small(method, **more):
    return {
        "method": method,
        "task": "mini",
        "rounds": 2,
        "model": {"width": 4},
        "training": {"epochs": 1, "batch": 16, "style_exchange": 0.5},
        "protocol": {"clients": {"pen": 2, "photo": 1, "print": 1}, "samples": 16, "participation": 0.8},
        **more,
    }


def after_a_round(method):
    """A method with style exchange after one round of four clients: where they work, the server, their memories."""
    task = load_task("mini")
    workplace = Workplace(complete_for(resolve([small(method)]), task), task)
    together = Together.of(workplace)
    uploads, memories = [], {}
    for client in range(4):
        upload, memories[client] = workplace.update(client, 0, together.broadcast(client), {})
        assert together.problem(upload) is None
        assert torch.equal(upload.knowledge[STYLE], style_of(workplace.client_data(client).images))
        uploads.append(upload)
    together.aggregate(uploads)
    return workplace, together, memories


@pytest.mark.parametrize("method", sorted(set(all_methods()) - {"strata"}))
def test_no_client_hears_of_another_clients_style(method):
    """Of what is exchanged, a broadcast has the styles of the clusters and the client's own cluster, and no more."""
    _, together, _ = after_a_round(method)
    clusters = int(cluster(together).max()) + 1
    for client in range(4):
        sent = {name: held for name, held in together.broadcast(client).knowledge.items() if "exchange" in name}
        assert set(sent) == {STYLES, OWN} and len(sent[STYLES]) == clusters and sent[OWN].ndim == 0


class Tells(fedavg.Server):
    """Keeps everything that clients send besides weights, and sends everything that it keeps."""

    def broadcast(self, client):
        return Broadcast(self.weights, {**self.knowledge, **self.extra})

    def aggregate(self, uploads):
        light = super().aggregate(uploads)
        told = {f"{upload.client}/{name}": held for upload in light for name, held in upload.knowledge.items()}
        self.extra = {**self.extra, **told}
        return light


def test_a_plug_in_that_tells_all_it_knows_tells_no_client_of_another_ones_style(monkeypatch):
    monkeypatch.setattr(registry, "_PLUGGED", {})
    registry.register_method(replace(registry.get_method("fedavg"), name="tells", server=Tells))
    workplace, together, _ = after_a_round("tells")
    styles = [style_of(workplace.client_data(client).images) for client in range(4)]
    again = Together.of(workplace)
    again.server.load_state(together.server.state())
    again.layers.load_state(together.layers.state())
    for one in (together, again):
        for client in range(4):
            sent = one.broadcast(client).knowledge
            assert set(sent) == {STYLES, OWN} and sent[OWN].ndim == 0
        shown = one.layers.shown(one.server.shown())
        assert torch.equal(shown.colours, torch.stack(styles)) and (shown.colour_groups >= 0).all()


@pytest.mark.parametrize("method", sorted(set(all_methods()) - {"strata"}))
def test_every_method_can_exchange_styles(method, tmp_path):
    """Two rounds with exchange: the styles arrive, the images change, and worker processes give the same."""
    runner.start(resolve([small(method, workers=0)]), tmp_path / "none", Observer())
    workplace, together, memories = after_a_round(method)
    message = together.broadcast(0)
    assert message.knowledge[STYLES].shape[1] == 12 and int(message.knowledge[OWN]) >= 0
    client = workplace.method.client(workplace.context(0, 1, message, memories[0]))
    images = workplace.client_data(0).images
    assert not torch.equal(client.restyle(images), images)
    assert workplace.method is registry.get_method(method)  # the method's classes are its own
    assert len(RunDirectory.open(tmp_path / "none").metrics()) == 2


def test_exchange_is_the_same_on_workers(tmp_path):
    for workers in (0, 2):
        runner.start(resolve([small("i2pfl", workers=workers)]), tmp_path / str(workers), Observer())
    a, b = ((tmp_path / str(workers) / "model.safetensors").read_bytes() for workers in (0, 2))
    assert a == b


def test_fedavg_with_styles_is_strata_with_and_without_balance(tmp_path):
    plain = {"epochs": 1, "batch": 16}
    styles = {**plain, "style_exchange": 0.8}
    runs = {
        "strata": ("strata", plain, {}),
        "both": ("fedavg", styles | {"style_balance": True}, {}),
        "unbalanced": ("strata", plain, {"balance": False}),
        "one": ("fedavg", styles, {}),
    }
    for name, (method, training, params) in runs.items():
        config = resolve([small(method, rounds=3, training=training, params=params, workers=0)])
        runner.start(config, tmp_path / name, Observer())
    strata, both, unbalanced, one = (load_file(tmp_path / name / "model.safetensors") for name in runs)
    assert all(torch.equal(strata[name], both[name]) for name in strata)
    assert all(torch.equal(unbalanced[name], one[name]) for name in one)
    assert not all(torch.equal(strata[name], one[name]) for name in strata)


@pytest.mark.parametrize("method", sorted(set(all_methods()) - {"strata"}))
def test_a_method_balances_pseudo_domains_or_says_that_it_cannot(method):
    task = load_task("mini")
    config = complete_for(resolve([small(method, training={"style_balance": True})]), task)
    if method in ("feddyn", "fedga", "fedopt", "fedplvm", "fedproto-original", "scaffold", "solo"):
        with pytest.raises(UserError, match=f"style_balance is not for {method}, which does not average"):
            Workplace(config, task)
        return
    together = Together.of(Workplace(config, task))
    counts = together.server.roster.counts
    together.layers.load_state({**together.layers.state(), CLUSTER: torch.tensor([0, 0, 1, -1])})
    weights = together.weights_of([Upload(client, counts[client], {}) for client in range(4)])
    n = [sum(counts[:2]), counts[2]]
    expected = [counts[0] / n[0], counts[1] / n[0], 1.0, counts[3] / ((n[0] + n[1]) / 2)]
    assert weights == pytest.approx(expected)


OLD = {"exchange": 0.5, "draw": "joint", "balance": False}
NEW = {"style_exchange": 0.5, "style_draw": "joint", "style_balance": False}


def of_training(config):
    return {name: getattr(config.training, name) for name in NEW}


def test_stratas_options_have_one_set_of_names():
    assert of_training(resolve([{"method": "strata"}])) == {**BOTH, "style_draw": "independent"}
    assert of_training(resolve([{"method": "strata", "training": NEW}])) == NEW
    assert of_training(resolve([{"method": "fedavg"}]))["style_exchange"] == 0.0


@pytest.mark.parametrize("word", ["strata", "Strata"])
def test_the_names_of_earlier_versions_are_read(word):
    asked = resolve([{"method": word, "params": OLD}])
    assert of_training(asked) == NEW and asked.params == {}
    then = RunConfig.model_validate({"method": "strata", "params": OLD, "training": {"style_exchange": 0.0}})
    assert of_training(then) == NEW and then.params == {}  # as every config.toml of a Strata run has both
    assert parse_set(["exchange=0.5", "params.draw=joint", "balance=false"], word) == {"training": NEW}
    with pytest.raises(UserError, match="exchange"):
        parse_set(["exchange=0.5"], "fedavg")


def test_a_job_of_strata_has_the_name_that_it_had():
    assert job_name(resolve([{"method": "strata"}])) == "strata-seed0-633882b3b2"
    assert job_name(resolve([{"method": "strata", "params": OLD}])) == "strata-seed0-36fe1097b6"


def test_privacy_refuses_styles_because_they_are_sent_as_they_are():
    task = load_task("mini")
    private = {"privacy": {"clip": 5.0}, "params": {"proto_pass": "eval_pass"}}
    Workplace(complete_for(resolve([{**small("fpl", **private), "training": {}}]), task), task)
    with pytest.raises(UserError, match="sends more than class means"):
        Workplace(complete_for(resolve([small("fpl", **private)]), task), task)
