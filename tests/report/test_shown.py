"""What the page says of a server's clusters, weights and styles is what the server used."""

import ast
import html
import math
from pathlib import Path

import pytest
import torch

import protolith.report.page
from protolith.data.protocols import Allocation, Client
from protolith.data.styles import style_of
from protolith.federation.layers.base import Layers
from protolith.federation.layers.robust import Robust
from protolith.federation.layers.styles import STYLE, StylesLayer
from protolith.methods.averaging import Pooling
from protolith.methods.base import Roster
from protolith.methods.registry import get_method
from protolith.methods.shown import Shown
from protolith.prototypes import cluster_points
from protolith.records import Upload
from protolith.report.page.build import make_page
from protolith.report.page.study import read_study
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.diagnostics import FOLDER, PrototypeLog, read_shown
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer

CLASSES, DIM = 2, 3
NOBODY = torch.zeros(0, dtype=torch.int64)


def a_round(tmp_path, method, vectors, params=None, robust=None, styles=None, extra=None, **settings):
    """One round of a server with these prototypes [M, K, d], written down as a run's. The page, and the server."""
    config = resolve([{"method": method, "rounds": 1, "params": params or {}, **settings}])
    run = RunDirectory.create(tmp_path / method, config)
    names = [f"s{i}" for i in range(len(vectors))]
    allocation = Allocation(tuple(Client(i, name, f"d{i % 2}", NOBODY) for i, name in enumerate(names)), ())
    pooling = Robust(*robust) if robust else Pooling()
    roster = Roster((10,) * len(vectors), CLASSES, DIM, 1, pooling=pooling)
    layers = Layers([StylesLayer(0.5, "mean", roster.counts)] if styles is not None else [])
    chosen = get_method(method)
    server = chosen.server(chosen.params(**config.params), {"w": torch.zeros(1)}, roster)
    log = PrototypeLog(run.path / FOLDER, allocation, ("cat", "dog"), roster)
    uploads = []
    for client, held in enumerate(vectors):
        known = {"prototypes": held, "counts": torch.tensor([5, 5])}
        known = {} if held is None else known
        known = {} if method in ("strata", "fedavg") else {**known, **(extra(client) if extra else {})}
        known |= {STYLE: styles[client]} if styles is not None else {}
        uploads.append(Upload(client, 10, {"w": torch.ones(1)}, known))
        log.sent(0, uploads[-1])
    server.aggregate(layers.receive(iter(uploads)))
    log.write(0, server.knowledge, layers.shown(server.shown()))
    run.append_metrics({"round": 1, "bytes_down": 0, "bytes_up": 0, "rejected": []})
    return make_page(read_study([run.path])), server, run


def table(part, words):
    """The body of the table whose caption has these words, in plain letters."""
    found = [held for held in html.unescape(part).split("<table")[1:] if words in held.split("</caption>")[0]]
    return found[0].split("<tbody>")[1].split("</table>")[0]


def points(*rows):
    return torch.tensor([[row, row] for row in rows], dtype=torch.float32)


LIAR = points((1.0, 0.0, 0.0), (1.1, 0.0, 0.0), (0.9, 0.0, 0.0), (0.0, 9.0, 0.0))


def weights_on(page):
    """What the page's map says of each site."""
    data = page.figures["s0-made-0"]["views"][0]["data"][0]
    names = [texts[0].split(" · ")[0] for texts in data["text"]]
    return dict(zip(names, data["z"], strict=True))


def test_i2pfls_weights_are_those_with_the_cap(tmp_path):
    page, _, _ = a_round(tmp_path, "i2pfl", LIAR, {"cap": 2.0, "aggregation": "reweight"})
    shown = weights_on(page)
    assert list(shown) == ["s0", "s2", "s1", "s3"]  # those of a domain side by side
    assert shown["s3"] == pytest.approx([50.0, 50.0])  # 2 / 4; without the cap, 74.9
    assert sum(row[0] for row in shown.values()) == pytest.approx(100.0)


def test_i2pfls_weights_without_a_cap_are_those_of_a_plain_loop(tmp_path):
    page, _, _ = a_round(tmp_path, "i2pfl", LIAR, {"aggregation": "reweight"})
    mean = [sum(float(v[0][i]) for v in LIAR) / 4 for i in range(DIM)]
    far = [sum((float(v[0][i]) - mean[i]) ** 2 for i in range(DIM)) for v in LIAR]
    for client, one in enumerate(far):
        assert weights_on(page)[f"s{client}"][0] == pytest.approx(100 * one / math.fsum(far), rel=1e-4)


@pytest.mark.parametrize(("method", "params"), [("fpl", {}), ("i2pfl", {"aggregation": "cluster"})])
def test_a_prototype_that_a_robust_rule_left_out_is_in_no_cluster(tmp_path, method, params):
    page, server, _ = a_round(tmp_path, method, LIAR, params, robust=("multi-krum", 0.25))
    members = table(page.parts["prototypes"], "Clusters of the clients' prototypes")
    assert "s2" in members and "s3" not in members
    assert members.count("<li>") == len(server.knowledge["clusters"])


def test_fedplvms_clusters_have_the_clusters_that_went_into_them(tmp_path):
    """Two prototypes of one class from one client, and one from the other: the page counts them."""
    sets = [torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0, 1.0, 0]]), torch.tensor([[1.0, 0.05, 0]])]
    classes = [torch.tensor([0, 0, 1]), torch.tensor([0])]
    page, _, run = a_round(
        tmp_path, "fedplvm", [None, None], extra=lambda c: {"prototypes": sets[c], "labels": classes[c]}
    )
    expected = cluster_points(torch.cat(sets), torch.cat(classes), "last")
    shown = read_shown(run.path)[-1].shown
    assert shown.labels.tolist() == expected.labels.tolist() == [0, 1]
    assert shown.clusters.tolist() == expected.membership.tolist() and shown.senders.tolist() == [0, 0, 0, 1]
    made = table(page.parts["prototypes"], "Clusters of the clients' prototypes")
    assert "s0 ×2, s1" in made and "s0 ×1" not in made


def test_fedcodes_groups_are_those_of_the_server(tmp_path):
    styles = torch.tensor([[1.0, 0, 0], [0.9, 0.1, 0], [0, 0, 1.0], [0, 0.1, 0.9]])
    page, server, _ = a_round(tmp_path, "fedcode", LIAR, extra=lambda c: {"style": styles[c]})
    assert server.extra["cluster"].tolist() == [0, 0, 1, 1]
    rows = table(page.parts["prototypes"], "cluster of styles").split("<tr>")
    assert any("s0, s1" in row for row in rows) and any("s2, s3" in row for row in rows)


COLOURS = [(200, 30, 30), (198, 32, 30), (20, 30, 220), (22, 30, 218)]


def colour(rgb):
    return style_of(torch.tensor(rgb, dtype=torch.uint8).expand(4, 8, 8, 3))


@pytest.mark.parametrize("method", ["strata", "fedavg", "fpl", "scaffold"])
def test_exchanged_styles_are_shown_by_site_and_by_group(tmp_path, method):
    extra = (lambda client: {"change/w": torch.zeros(1)}) if method == "scaffold" else None
    styles = [colour(rgb) for rgb in COLOURS]
    page, _, _ = a_round(tmp_path, method, LIAR, styles=styles, extra=extra)
    part = page.parts["styles"]
    for rgb in COLOURS:
        assert f"rgb({rgb[0]},{rgb[1]},{rgb[2]})" in part
    first, second = (row for row in part.split("<tr>") if "group 1" in row or "group 2" in row)
    assert all(name in first for name in ("s0", "s1")) and all(name in second for name in ("s2", "s3"))
    assert "s2" not in first and "s0" not in second and "rgb(199,31,30)" in first


def test_a_real_run_of_strata_has_its_styles_on_the_page(tiny, tmp_path):
    run = runner.start(resolve([{**tiny, "method": "strata", "rounds": 2}]), tmp_path / "run", Observer())
    held = read_shown(run.path)
    assert [made.round for made in held] == [1, 2]
    assert held[-1].shown.colours.shape == (4, 12) and held[-1].shown.colour_groups.min() >= 0
    part = make_page(read_study([run.path])).parts["styles"]
    assert all(name in part for name in ("pen-1", "pen-2", "photo-1", "print-1")) and "group 1" in part


def test_without_exchange_the_page_says_so(tmp_path):
    page, _, _ = a_round(tmp_path, "fpl", LIAR)
    assert "No styles were exchanged in these runs" in page.parts["styles"]


def test_an_older_run_says_that_it_is_older_and_shows_what_its_server_saved(tmp_path):
    for method, params in (("i2pfl", {"aggregation": "reweight"}), ("fpl", {})):
        _, _, run = a_round(tmp_path, method, LIAR, params)
        for file in (run.path / FOLDER).glob("shown-*"):
            file.unlink()
    i2pfl, fpl = (make_page(read_study([tmp_path / name])).parts["prototypes"] for name in ("i2pfl", "fpl"))
    assert "This run is older than the record of what its server used" in i2pfl and "made-0" not in i2pfl
    assert "This run is older than the record" in fpl and "Clusters of FPL, round 1" in fpl


def test_a_round_that_nobody_answered_shows_nothing(tmp_path):
    roster = Roster((10, 10), CLASSES, DIM, 1)
    allocation = Allocation(tuple(Client(i, f"s{i}", "d", NOBODY) for i in range(2)), ())
    log = PrototypeLog(tmp_path / FOLDER, allocation, ("cat", "dog"), roster)
    log.write(0, {}, StylesLayer(0.5, "mean", roster.counts).shown(Shown()))
    assert not (tmp_path / FOLDER).exists()


def test_what_is_shown_changes_no_result(tiny, tmp_path):
    """It is no part of a server's state: a checkpoint has the same names as before."""
    _, server, _ = a_round(tmp_path, "i2pfl", LIAR)
    assert {name.split("/")[0] for name in server.state()} <= {"weights", "knowledge", "extra"}
    assert server.extra == {}


def test_the_page_computes_nothing_that_a_server_does():
    for file in Path(protolith.report.page.__file__).parent.glob("*.py"):
        modules = {node.module for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)}
        assert not any(str(name).startswith("protolith.prototypes") for name in modules), file
