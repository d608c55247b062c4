"""Part 6: the prototypes themselves."""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from protolith.prototypes import cluster_per_class, reweight
from protolith.prototypes.neighbours import Partition
from protolith.report.page.html import Html, join, select, table, tag
from protolith.report.page.plots import SYMBOLS, Figures, Trace, View, heat_map, legend, rounds_axis
from protolith.report.page.study import Run, Setting, Study
from protolith.report.style import point_looks
from protolith.runs.diagnostics import Prototypes

CLASSES = 12  # classes that have a map of their own


def prototypes(study: Study, figures: Figures) -> Html:
    """Maps, ways and what became of them, for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    level = "h4" if named else "h3"
    title = tag("h3", setting.title) if named else ""
    held = setting.first_with("prototypes")
    without = [label for label in setting.methods if label not in held]
    said = tag("p", f"No prototypes of {', '.join(without)}: {_reason(setting, without)}", class_="missing")
    if not held:
        return join([title, said])
    parts = [
        title,
        tag(level, "How alike the clients' prototypes of a class are"),
        _alike(setting, held, figures),
        tag(level, "How far they move in a round"),
        _moves(setting, held, figures),
        tag(level, "What the methods made of them"),
        *(_made(f"{setting.key}-made-{i}", label, run, figures) for i, (label, run) in enumerate(held.items())),
        said if without else "",
    ]
    return join(parts)


def _reason(setting: Setting, labels: Sequence[str]) -> str:
    off = [label for label in labels if not any(run.config.diagnostics for run in setting.methods[label])]
    return "run without diagnostics, or they send none." if off else "they send none, or no round is done."


def by_domain(found: Prototypes) -> list[int]:
    """The places of the clients, those of a domain side by side."""
    order = list(dict.fromkeys(found.domains))
    return sorted(range(len(found.clients)), key=lambda place: order.index(found.domains[place]))


def cosines(found: Prototypes) -> Tensor:
    """Cosines between the clients' prototypes of each class [K, M, M]; NaN where one lacks the class."""
    order = by_domain(found)
    vectors = found.record["prototypes"][order].float().transpose(0, 1)
    has = (found.record["counts"][order] > 0).T
    unit = F.normalize(vectors, dim=2)
    return torch.where(has[:, :, None] & has[:, None, :], unit @ unit.transpose(1, 2), torch.nan)


def _alike(setting: Setting, held: dict[str, Run], figures: Figures) -> Html:
    group = f"{setting.key}-alike"
    classes = next(iter(held.values())).prototypes[-1].classes
    shown = ["mean of all classes", *classes[:CLASSES]]
    panels = []
    for index, (label, run) in enumerate(held.items()):
        last = run.prototypes[-1]
        names = [last.clients[place] for place in by_domain(last)]
        found = cosines(last)
        maps = torch.cat([found.nanmean(dim=0, keepdim=True), found[: len(shown) - 1]])
        views = [_map(one, names) for one in maps]
        words = f"Cosines between the clients' prototypes, {label}, round {last.round}"
        drawn = figures.add(f"{group}-{index}", words, views, group=group, height=330)
        panels.append(tag("figure", tag("figcaption", f"{label}, round {last.round}, seed {run.config.seed}"), drawn))
    more = len(classes) - CLASSES
    return join(
        [
            select(group, "Class", shown),
            tag("div", *panels, class_="panels"),
            tag("p", f"{more} more classes have no map of their own.", class_="note") if more > 0 else "",
        ]
    )


def _map(values: Tensor, names: Sequence[str]) -> View:
    rows = [[None if value != value else value for value in row] for row in values.tolist()]
    held = values[~values.isnan()]
    lowest = float(held.min()) if len(held) else 0.0
    return heat_map(rows, names, names, digits=2, limits=(min(lowest, 0.999), 1.0), written=False)


def movement(found: Sequence[Prototypes]) -> dict[str, dict[int, float]]:
    """How far each client's prototypes moved: 1 − cosine to the saved round before, a round, mean over classes."""
    ways: dict[str, dict[int, float]] = {}
    for before, after in pairwise(found):
        for place, name in enumerate(after.clients):
            if name not in before.clients:
                continue
            old = before.clients.index(name)
            both = (before.record["counts"][old] > 0) & (after.record["counts"][place] > 0)
            if bool(both.any()):
                pair = before.record["prototypes"][old][both], after.record["prototypes"][place][both]
                far = 1.0 - F.cosine_similarity(pair[0].float(), pair[1].float(), dim=1).mean()
                ways.setdefault(name, {})[after.round] = float(far) / (after.round - before.round)
    return ways


def _moves(setting: Setting, held: dict[str, Run], figures: Figures) -> Html:
    moved = {label: movement(run.prototypes) for label, run in held.items()}
    moved = {label: ways for label, ways in moved.items() if ways}
    if not moved:
        return tag("p", "Only one round was saved: there is no way to show yet.", class_="missing")
    group, views = f"{setting.key}-moves", []
    domains = dict.fromkeys(domain for run in held.values() for _, domain in run.prototypes[-1].everyone)
    looks = point_looks(list(domains), "domain")
    for label, ways in moved.items():
        lives = dict(held[label].prototypes[-1].everyone)
        data: list[Trace] = [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "x": list(way),
                "y": list(way.values()),
                "line": {"color": looks[lives[name]].colour, "width": 1.5},
                "marker": {"color": looks[lives[name]].colour, "symbol": SYMBOLS[looks[lives[name]].marker], "size": 6},
                "customdata": [[None, f"{name}, round {round_}: {far:.4f}"] for round_, far in way.items()],
                "hoverinfo": "none",
            }
            for name, way in ways.items()
        ]
        axes = {"xaxis": rounds_axis(max((round_ for way in ways.values() for round_ in way), default=1))}
        views.append(View(data, {**axes, "yaxis": {"title": {"text": "1 − cosine, a round"}, "rangemode": "tozero"}}))
    words = "How far each client's prototypes moved in a round, a line for each client, coloured by its domain"
    return join(
        [
            select(group, "Method", list(moved)),
            legend(looks),
            figures.add(group, words, views, group=group, thumbnails=group),
            tag("p", f"{words}: 1 − cosine to the saved round before, divided by the rounds between.", class_="note"),
        ]
    )


def _made(key: str, label: str, run: Run, figures: Figures) -> Html:
    """What a method made of the last prototypes: clusters, weights, groups of styles, or a plain mean."""
    last, params = run.prototypes[-1], run.config.params
    aggregation = params.get("aggregation")
    title = tag("p", tag("b", label))
    if "server/style_cluster" in last.record:
        return join([title, _styles(last)])
    if run.config.method == "fpl" or aggregation == "cluster":
        return join([title, _clusters(last, params.get("partition", "last"))])
    if aggregation == "reweight":
        return join([title, _weights(key, label, last, figures)])
    if "server/clusters" in last.record:
        counts = torch.bincount(last.record["server/cluster_labels"].long(), minlength=len(last.classes)).tolist()
        rows = [[name, count] for name, count in zip(last.classes, counts, strict=True)]
        return join([title, table(["class", "clusters"], rows, f"Clusters of {label}, round {last.round}")])
    return join([title, tag("p", "One prototype for each class: the mean of the clients'.", class_="note")])


def _clusters(last: Prototypes, partition: Partition) -> Html:
    """FINCH's clusters of each class with their members."""
    found = cluster_per_class(last.record["prototypes"], last.record["counts"], partition)
    rows = []
    for place, name in enumerate(last.classes):
        of = found.membership[:, place]
        groups = [
            join([last.clients[member] for member in (of == cluster).nonzero().flatten().tolist()], ", ")
            for cluster in sorted(set(of[of >= 0].tolist()))
        ]
        rows.append([name, len(groups), tag("ul", *(tag("li", group) for group in groups), class_="groups")])
    caption = f"Clusters of the clients' prototypes, round {last.round}"
    return table(["class", "clusters", "members"], rows, caption, numbers=False)


def _weights(key: str, label: str, last: Prototypes, figures: Figures) -> Html:
    """I2PFL's weights by client and class."""
    weights = reweight(last.record["prototypes"], last.record["counts"])[2]
    order = by_domain(last)
    rows = [[100.0 * value for value in weights[place].tolist()] for place in order]
    names = [last.clients[place] for place in order]
    words = f"Weight of each client's prototype in the server's, in per cent, by class: {label}, round {last.round}"
    view = heat_map(rows, last.classes, names, unit=" %")
    drawn = figures.add(key, words, [view], height=min(800, 120 + 26 * len(names)))
    return join([drawn, tag("p", words + ".", class_="note")])


def _styles(last: Prototypes) -> Html:
    """Clusters of styles beside the true domains."""
    cluster = last.record["server/style_cluster"].tolist()
    domains = list(dict.fromkeys(domain for _, domain in last.everyone))
    rows = []
    for number in sorted({held for held in cluster if held >= 0}):
        lives = [domain for held, (_, domain) in zip(cluster, last.everyone, strict=True) if held == number]
        members = [name for held, (name, _) in zip(cluster, last.everyone, strict=True) if held == number]
        rows.append([f"style {number + 1}", *(lives.count(domain) or "·" for domain in domains), ", ".join(members)])
    caption = f"Clients in each cluster of styles, by their true domain, round {last.round}"
    return table(["cluster", *domains, "members"], rows, caption)
