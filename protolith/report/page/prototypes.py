"""Part 6: the prototypes themselves."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from protolith.report.page.html import Html, join, select, table, tag
from protolith.report.page.plots import SYMBOLS, Figures, Trace, View, heat_map, legend, rounds_axis
from protolith.report.page.study import Setting, Study
from protolith.report.style import point_looks
from protolith.runs.diagnostics import Made, Prototypes
from protolith.runs.run import Run

CLASSES = 12  # classes that have a map of their own


def prototypes(study: Study, figures: Figures) -> Html:
    """Maps, ways and what became of them, for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    level = "h4" if named else "h3"
    title = tag("h3", setting.title) if named else ""
    held = setting.first_with(lambda run: run.prototypes)
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
    vectors = found.vectors[order].float().transpose(0, 1)
    has = (found.counts[order] > 0).T
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
            both = (before.counts[old] > 0) & (after.counts[place] > 0)
            if bool(both.any()):
                pair = before.vectors[old][both], after.vectors[place][both]
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
    """What a server made of the last prototypes: clusters, weights, groups of styles, or a plain mean."""
    title, made = tag("p", tag("b", label)), run.shown[-1] if run.shown else None
    if made is None:
        return join([title, _saved(label, run)])
    if made.shown.style_groups is not None:
        return join([title, _styles(made.shown.style_groups.tolist(), made.round, made.everyone)])
    if made.shown.weights is not None:
        return join([title, _weights(key, label, made, figures)])
    return join([title, _saved(label, run) if made.shown.clusters is None else _clusters(made)])


def _saved(label: str, run: Run) -> Html:
    """What a run has that shows nothing: one that is older than what servers show, or one that takes means."""
    last, aggregation = run.prototypes[-1], run.config.params.get("aggregation")
    clusters = last.clusters
    parts = []
    if clusters or aggregation == "reweight" or "server/style_cluster" in last.record:
        words = "who was in which cluster, and with which weight, is not known"
        older = f"This run is older than the record of what its server used: {words}."
        parts.append(tag("p", older, class_="missing"))
    if "server/style_cluster" in last.record:
        parts.append(_styles(last.record["server/style_cluster"].tolist(), last.round, last.everyone))
    if clusters:
        counts = torch.bincount(clusters.labels.long(), minlength=len(last.classes)).tolist()
        rows = [[name, count] for name, count in zip(last.classes, counts, strict=True)]
        parts.append(table(["class", "clusters"], rows, f"Clusters of {label}, round {last.round}"))
    return join(parts or [tag("p", "One prototype for each class: the mean of the clients'.", class_="note")])


def _clusters(made: Made) -> Html:
    """The server's clusters of each class with their members; a client may have several prototypes in one."""
    shown = made.shown
    assert shown.clusters is not None and shown.senders is not None and shown.labels is not None
    members: dict[int, Counter[str]] = {}
    for cluster, sender in zip(shown.clusters.tolist(), shown.senders.tolist(), strict=True):
        members.setdefault(cluster, Counter())[made.everyone[sender][0]] += 1
    rows = []
    for place, name in enumerate(made.classes):
        groups = [members[cluster] for cluster in (shown.labels == place).nonzero().flatten().tolist()]
        listed = [tag("li", ", ".join(f"{who} ×{n}" if n > 1 else who for who, n in group.items())) for group in groups]
        rows.append([name, len(groups), tag("ul", *listed, class_="groups")])
    caption = f"Clusters of the clients' prototypes, round {made.round}"
    return table(["class", "clusters", "members"], rows, caption, numbers=False)


def _weights(key: str, label: str, made: Made, figures: Figures) -> Html:
    """The server's weights by client and class."""
    weights, weighed = made.shown.weights, made.shown.weighed
    assert weights is not None and weighed is not None
    held = [(*made.everyone[client], row) for client, row in zip(weighed.tolist(), weights.tolist(), strict=True)]
    domains = list(dict.fromkeys(domain for _, domain, _ in held))
    held.sort(key=lambda client: domains.index(client[1]))  # those of a domain side by side
    rows = [[100.0 * value for value in row] for _, _, row in held]
    names = [name for name, _, _ in held]
    words = f"Weight of each client's prototype in the server's, in per cent, by class: {label}, round {made.round}"
    view = heat_map(rows, made.classes, names, unit=" %")
    drawn = figures.add(key, words, [view], height=min(800, 120 + 26 * len(names)))
    return join([drawn, tag("p", words + ".", class_="note")])


def _styles(cluster: Sequence[int], round_: int, everyone: Sequence[tuple[str, str]]) -> Html:
    """Clusters of styles beside the true domains."""
    domains = list(dict.fromkeys(domain for _, domain in everyone))
    rows = []
    for number in sorted({held for held in cluster if held >= 0}):
        lives = [domain for held, (_, domain) in zip(cluster, everyone, strict=True) if held == number]
        members = [name for held, (name, _) in zip(cluster, everyone, strict=True) if held == number]
        rows.append([f"style {number + 1}", *(lives.count(domain) or "·" for domain in domains), ", ".join(members)])
    caption = f"Clients in each cluster of styles, by their true domain, round {round_}"
    return table(["cluster", *domains, "members"], rows, caption)
