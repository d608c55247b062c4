"""Part 5: the feature space, embedded by t-SNE."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protolith.errors import UserError
from protolith.report.features import Embedding, Features, PrototypeSet, embed
from protolith.report.page.html import Html, join, select, tag
from protolith.report.page.pictures import Thumbnails
from protolith.report.page.plots import SYMBOLS, Figures, Trace, View, legend
from protolith.report.page.study import Setting, Study
from protolith.report.style import GREY, INK, Look, point_looks
from protolith.runs.diagnostics import FOLDER, TESTS, Tests
from protolith.runs.run import Run

PANELS = 12  # methods of a setting that are embedded
MOST = 200  # clients' prototypes in a panel
LEGEND = 40  # classes beyond this have no line in the legend
_known: dict[tuple[str, int], Embedding] = {}
EDGE = {"width": 1, "color": INK}


def space(study: Study, figures: Figures) -> Html:
    """A row of panels for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    title = tag("h3", setting.title) if named else ""
    held = setting.first_with(lambda run: run.tests)
    if not held:
        words = "No features were saved: the runs are not finished, or were run without diagnostics."
        return join([title, tag("p", words, class_="missing")])
    group, pictures = f"{setting.key}-space", Thumbnails()
    chosen = dict(list(held.items())[:PANELS])
    panels = [_panel(f"{group}-{i}", *item, figures, group, pictures) for i, item in enumerate(chosen.items())]
    figures.thumbnails[group] = pictures.addresses
    first = next(iter(held.values())).tests
    assert first is not None
    keys = [point_looks(first.classes[:LEGEND], "class"), point_looks(first.domains, "domain")]
    shown = [tag("div", legend(key), data_group=group, data_view=i, hidden=i > 0) for i, key in enumerate(keys)]
    left = len(held) - len(chosen)
    return join(
        [
            title,
            select(group, "Colour by", ["class", "domain"]),
            *shown,
            tag("div", *panels, class_="panels"),
            tag("p", f"{left} more method(s) are not embedded.", class_="missing") if left else "",
        ]
    )


@dataclass(frozen=True)
class _Vectors:
    """Prototypes to be drawn: vectors, classes, and the domain of each (-1: nobody's)."""

    vectors: Tensor
    labels: Tensor
    domains: Tensor


def _panel(key: str, label: str, run: Run, figures: Figures, group: str, pictures: Thumbnails) -> Html:
    tests = run.tests
    assert tests is not None
    title = f"{label}, seed {run.config.seed}"
    of_clients, of_server = _clients(run, tests), _server(run, tests)
    try:
        placed = _embedded(run, _together(tests, of_clients, of_server))
    except UserError as error:
        return tag("figure", tag("figcaption", title), tag("p", str(error), class_="missing"))
    layout = {**{axis: {"visible": False} for axis in ("xaxis", "yaxis")}, "margin": dict.fromkeys("lrtb", 4)}
    views = []
    for mode in ("class", "domain"):
        clients = _stars(tests, mode, of_clients, placed.clusters, "diamond", 8, "a client's prototype")
        server = _stars(tests, mode, of_server, placed.prototypes, "star", 14, "the server's prototype")
        views.append(View([*_points(tests, placed.points, mode, pictures), *clients, *server], layout))
    words = f"t-SNE of {len(tests.sampled)} test images as {tests.features_of} of {title} sees them"
    drawn = figures.add(key, words, views, group=group, height=300, thumbnails=group)
    return tag("figure", tag("figcaption", title), drawn)


def _embedded(run: Run, held: Features) -> Embedding:
    """The embedding, which a page that is renewed does not compute again."""
    key = (str(run.path.resolve()), (run.path / FOLDER / TESTS).stat().st_mtime_ns)
    if key not in _known:
        _known[key] = embed(held)
    return _known[key]


def _together(tests: Tests, of_clients: _Vectors, of_server: _Vectors) -> Features:
    """Images and prototypes for one embedding."""
    server, clients = (PrototypeSet(v.vectors, v.labels) if len(v.labels) else None for v in (of_server, of_clients))
    label, domain, row = (part[tests.sampled] for part in (tests.label, tests.domain, tests.row))
    names, classes = tuple(tests.domains), tuple(tests.classes)
    return Features(tests.features.float(), label, domain, row, names, classes, server, clients)


def _points(tests: Tests, where: Tensor, mode: str, pictures: Thumbnails) -> list[Trace]:
    """The test images, a trace for each class or domain."""
    names = tests.classes if mode == "class" else tests.domains
    of = (tests.label if mode == "class" else tests.domain)[tests.sampled]
    traces = []
    for index, look in enumerate(point_looks(names, mode).values()):
        chosen = (of == index).nonzero().flatten()
        hover = [[pictures.index(tests, place), _words(tests, place)] for place in tests.sampled[chosen].tolist()]
        traces.append(_scatter(where[chosen], look, hover, size=7 if mode == "class" else 6))
    return traces


def _words(tests: Tests, place: int) -> str:
    true, taken = tests.classes[int(tests.label[place])], tests.classes[int(tests.predicted[place])]
    verdict = "right" if true == taken else f"taken for {taken}"
    return (
        f"{true}, {tests.domains[int(tests.domain[place])]}: {verdict} ({100 * float(tests.confidence[place]):.0f} %)"
    )


def _scatter(where: Tensor, look: Look, hover: Sequence[object], *, size: int, symbol: str = "") -> Trace:
    marker = {"size": size, "color": look.colour, "symbol": symbol or SYMBOLS[look.marker], "opacity": 0.8}
    if symbol:
        marker |= {"line": EDGE, "opacity": 1}
    return {
        "type": "scatter",
        "mode": "markers",
        "x": where[:, 0].tolist(),
        "y": where[:, 1].tolist(),
        "marker": marker,
        "customdata": list(hover),
        "hoverinfo": "none",
    }


def _stars(tests: Tests, mode: str, held: _Vectors, where: Tensor, symbol: str, size: int, whose: str) -> list[Trace]:
    """Prototypes, a trace for each class or domain; grey where they are of no domain."""
    of = held.labels if mode == "class" else held.domains
    looks = dict(enumerate(point_looks(tests.classes if mode == "class" else tests.domains, mode).values()))
    traces = []
    for index, look in {**looks, -1: Look(GREY, "-", "o")}.items():
        chosen = (of == index).nonzero().flatten()
        if len(chosen):
            hover = [[None, f"{whose}: {tests.classes[int(held.labels[place])]}"] for place in chosen]
            traces.append(_scatter(where[chosen], look, hover, size=size, symbol=symbol))
    return traces


def _none(width: int) -> _Vectors:
    empty = torch.empty(0, dtype=torch.int64)
    return _Vectors(torch.empty(0, width), empty, empty)


def _clients(run: Run, tests: Tests) -> _Vectors:
    """The last prototypes that the clients sent, as far as they live among the features."""
    width = tests.features.shape[1]
    if not run.prototypes or run.prototypes[-1].vectors.shape[2] != width:
        return _none(width)
    last = run.prototypes[-1]
    vectors, held = last.vectors, last.counts > 0
    held[:, max(1, MOST // len(held)) :] = False
    places = {name: index for index, name in enumerate(tests.domains)}
    domains = torch.tensor([places.get(domain, -1) for domain in last.domains])
    client, label = held.nonzero(as_tuple=True)
    return _Vectors(vectors[client, label].float(), label, domains[client])


def _server(run: Run, tests: Tests) -> _Vectors:
    """The server's prototypes: one for each class, or clusters."""
    width = tests.features.shape[1]
    found = run.prototypes[-1].server if run.prototypes else None
    if found is None or found.vectors.shape[1] != width or len(found.labels) > MOST:
        return _none(width)
    return _Vectors(found.vectors.float(), found.labels.long(), torch.full_like(found.labels, -1).long())
