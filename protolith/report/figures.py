"""The papers' figures from finished runs, as PDF and PNG: curves, studies of an option, bars, t-SNE.

Every figure has two functions: `draw_x` returns it, `x` writes it to files. A spread is the standard deviation
of the seeds, as in the tables; one seed has none.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from pydantic import JsonValue

from protolith.errors import UserError, unknown
from protolith.experiments.compare import group_runs
from protolith.report import style
from protolith.report.features import Embedding, Features, client_models, collect_features, embed
from protolith.report.style import Look
from protolith.runs.attendance import with_whole_means
from protolith.runs.directory import MODEL
from protolith.runs.round import Round
from protolith.runs.run import Run

Runs = Mapping[str, Mapping[str, Sequence[Run]]]  # panel -> method or variant -> a run for each seed
Data = Mapping[str, Mapping[str, Mapping[Any, Sequence[float]]]]  # panel -> series -> x -> a value for each seed
Grid = Mapping[str, Mapping[str, Features]]  # row -> column -> features
Value = Callable[[Round], float | None]

ACCURACY = "accuracy (%)"
COLOURINGS = ("class", "domain", "both")
KINDS = ("curves", "domains", "tsne")
BAR_LABEL = 0.22  # inches that the value on a bar needs
MARKS = 8  # markers on a curve
CROWD = 6  # more curves than this are drawn thinner
STAR, SMALL_STAR = 70, 28  # areas of prototypes


@dataclass(frozen=True)
class Curve:
    """Means over the seeds by round, counted from 1; a spread is None where only one seed has the round."""

    rounds: list[int]
    means: list[float]
    spreads: list[float | None]


def curves(
    groups: Runs, path: Path, domain: str | None = None, *, value: str | Value | None = None, ylabel: str = ACCURACY
) -> list[Path]:
    """Accuracy over communication rounds, one panel for each group: see `draw_curves`."""
    return style.save(draw_curves(groups, domain, value=value, ylabel=ylabel), path)


def draw_curves(
    groups: Runs, domain: str | None = None, *, value: str | Value | None = None, ylabel: str = ACCURACY
) -> Figure:
    """Draw the mean over seeds and a band of ± one standard deviation around it.

    `domain` selects one domain instead of the mean of all. `value` draws something else of a line of metrics: a
    key such as "gata" or "loss.ce", or a function. Rounds without a value are left out; a round that not all
    seeds have is the mean of those that do.
    """
    read = _reader(value, domain)
    panels = {title: {label: curve(runs, read) for label, runs in group.items()} for title, group in groups.items()}
    for title, group in panels.items():
        for label, found in group.items():
            if not found.rounds and domain is not None:
                raise unknown(f"domain of {title}", domain, domains_of(groups[title]))
            if not found.rounds:
                raise UserError(f"'{label}' of {title} cannot be drawn: its runs hold no such value.")
    return _draw_panels(panels, ylabel)


def by_domain(groups: Runs, path: Path, domains: Sequence[str] | None = None) -> list[Path]:
    """Accuracy over communication rounds, one panel for each domain: see `draw_by_domain`."""
    return style.save(draw_by_domain(groups, domains), path)


def draw_by_domain(groups: Runs, domains: Sequence[str] | None = None) -> Figure:
    """Draw curves as `draw_curves` does, each domain of each group in a panel of its own.

    A method that was not tested on a domain is not in its panel.
    """
    panels, most = {}, 0
    for title, group in groups.items():
        held = domains_of(group)
        chosen = held if domains is None else [match_domain(name, held) for name in domains]
        most = max(most, len(chosen))
        for domain in chosen:
            found = {label: curve(runs, _reader(None, domain)) for label, runs in group.items()}
            name = style.plain(domain) if len(groups) == 1 else f"{title}\n{style.plain(domain)}"
            panels[name] = {label: line for label, line in found.items() if line.rounds}
    return _draw_panels(panels, ACCURACY, columns={1: 4, 6: 3}.get(most, min(most, 5)))


def curve(runs: Iterable[Run], value: Value) -> Curve:
    """Average a value over the runs, round by round; a mean over fewer sites than the run has is none."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for line in with_whole_means(run.rounds):
            if (number := value(line)) is not None:
                found.setdefault(line.round, []).append(number)
    rounds = sorted(found)
    return Curve(rounds, [statistics.fmean(found[r]) for r in rounds], [spread(found[r]) for r in rounds])


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of the seeds at hand; None for one."""
    return statistics.stdev(values) if len(values) > 1 else None


def domains_of(group: Mapping[str, Sequence[Run]]) -> list[str]:
    """The domains that the runs of a group were tested on."""
    lines = (line for runs in group.values() for run in runs for line in run.rounds)
    return list(dict.fromkeys(domain for line in lines for domain in line.accuracy))


def match_domain(given: str, held: Sequence[str]) -> str:
    """Find a domain by its name, with or without the mark of a stand-in."""
    for name in (given, f"{given}*"):
        if name in held:
            return name
    raise unknown("domain", given, held)


def study(
    groups: Data,
    path: Path,
    xlabel: str,
    *,
    ylabel: str = ACCURACY,
    base: Mapping[str, float] | None = None,
    base_label: str = "FedAvg",
) -> list[Path]:
    """Accuracy against an option: see `draw_study`."""
    return style.save(draw_study(groups, xlabel, ylabel=ylabel, base=base, base_label=base_label), path)


def draw_study(
    groups: Data,
    xlabel: str,
    *,
    ylabel: str = ACCURACY,
    base: Mapping[str, float] | None = None,
    base_label: str = "FedAvg",
) -> Figure:
    """Draw means over seeds with error bars; the values of the option stand evenly spaced, in the order given.

    `base` gives panels a dashed line across, such as the accuracy without the option.
    """

    def draw(ax: Axes, places: Sequence[int], found: _Points, look: Look, index: int, count: int) -> None:
        ax.errorbar(
            places, found.means, yerr=found.errors, color=look.colour, linestyle=look.line, marker=look.marker,
            **style.OUTLINE,
        )  # fmt: skip

    return _draw_data(groups, xlabel, ylabel, base or {}, base_label, draw, style.line_key)


def bars(
    groups: Data,
    path: Path,
    xlabel: str = "",
    *,
    ylabel: str = ACCURACY,
    base: Mapping[str, float] | None = None,
    base_label: str = "FedAvg",
    bottom: float = 0.0,
) -> list[Path]:
    """Grouped bars: see `draw_bars`."""
    figure = draw_bars(groups, xlabel, ylabel=ylabel, base=base, base_label=base_label, bottom=bottom)
    return style.save(figure, path)


def draw_bars(
    groups: Data,
    xlabel: str = "",
    *,
    ylabel: str = ACCURACY,
    base: Mapping[str, float] | None = None,
    base_label: str = "FedAvg",
    bottom: float = 0.0,
) -> Figure:
    """Draw the data of a study as bars, the series side by side; the axis begins at `bottom`."""

    def draw(ax: Axes, places: Sequence[int], found: _Points, look: Look, index: int, count: int) -> None:
        width = min(0.8 / count, 0.4)
        middles = [place + (index - (count - 1) / 2) * width for place in places]
        ax.bar(
            middles, [mean - bottom for mean in found.means], width * 0.94, bottom=bottom, yerr=found.errors,
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0,
        )  # fmt: skip
        if style.inner_width(ax) > count * len(places) * BAR_LABEL:
            for x, mean, over in zip(middles, found.means, found.errors or [0.0] * len(places), strict=True):
                top = (x, mean + (over if over == over else 0.0))
                ax.annotate(f"{mean:.1f}", top, (0, 1.5), textcoords="offset points", ha="center", fontsize=6)

    figure = _draw_data(groups, xlabel, ylabel, base or {}, base_label, draw, style.bar_key)
    for ax in figure.axes:
        ax.grid(False, axis="x")
        ax.set_ylim(bottom=bottom)
        ax.set_xlim(-0.5, len(ax.get_xticks()) - 0.5)
    return figure


def tsne(panels: Grid, path: Path, colour: str = "class") -> list[Path]:
    """Features embedded in the plane: see `draw_tsne`."""
    return style.save(draw_tsne(panels, colour), path)


def draw_tsne(panels: Grid, colour: str = "class") -> Figure:
    """Draw a grid of t-SNE embeddings, coloured by "class", by "domain", or in two blocks by "both".

    Features are embedded as they are (see `features.embed`), each panel by itself and together with its
    prototypes, which are stars: large for the global one of a class, small for one of several clusters.
    """
    if colour not in COLOURINGS:
        raise unknown("colour", colour, COLOURINGS)
    columns = list(dict.fromkeys(column for row in panels.values() for column in row))
    if not columns:
        raise UserError("there is nothing to draw: a t-SNE needs features.")
    placed = {(row, column): embed(found) for row, cells in panels.items() for column, found in cells.items()}
    blocks = [
        _Block(mode, names, {row: panels[row] for row in rows})
        for mode in (("class", "domain") if colour == "both" else (colour,))
        for names, rows in _rows_alike(panels, mode).items()
    ]
    with style.paper():
        figure, grids = style.cells(columns, [(list(block.panels), list(block.keys())) for block in blocks])
        for grid, block in zip(grids, blocks, strict=True):
            block.draw(grid, columns, placed)
            style.legend_right(figure, grid, block.keys(), block.mode)
    return figure


@dataclass(frozen=True)
class _Block:
    """Rows of a t-SNE that share a legend."""

    mode: str
    names: tuple[str, ...]
    panels: Grid

    @property
    def look(self) -> dict[str, Look]:
        return style.point_looks(self.names, self.mode)

    def keys(self) -> dict[str, Any]:
        """The legend: classes or domains, then the kinds of prototypes that there are."""
        keys = {style.plain(name): style.point_key(look) for name, look in self.look.items()}
        held = [features for cells in self.panels.values() for features in cells.values()]
        if any(features.prototypes for features in held):
            keys["prototype"] = style.star_key(STAR)
        if any(features.clusters for features in held):
            keys["cluster prototype"] = style.star_key(SMALL_STAR)
        return keys

    def draw(self, grid: list[list[Axes]], columns: Sequence[str], placed: Mapping[tuple[str, str], Embedding]) -> None:
        for line, (row, cells) in zip(grid, self.panels.items(), strict=True):
            for ax, column in zip(line, columns, strict=True):
                if column in cells:
                    _draw_cell(ax, self.mode, self.look, cells[column], placed[row, column])
                else:
                    ax.spines[:].set_visible(False)


def _rows_alike(panels: Grid, mode: str) -> dict[tuple[str, ...], list[str]]:
    """The rows that can share a legend, by what stands in it."""
    found: dict[tuple[str, ...], list[str]] = {}
    for row, cells in panels.items():
        names = dict.fromkeys(name for features in cells.values() for name in _names(features, mode))
        found.setdefault(tuple(names), []).append(row)
    return found


def _names(features: Features, mode: str) -> tuple[str, ...]:
    return features.class_names if mode == "class" else features.domain_names


def _draw_cell(ax: Axes, mode: str, look: Mapping[str, Look], features: Features, where: Embedding) -> None:
    of = features.labels if mode == "class" else features.domains
    for index, name in enumerate(_names(features, mode)):
        points = where.points[of == index]
        ax.scatter(
            points[:, 0], points[:, 1], s=5, color=look[name].colour, marker=look[name].marker, alpha=0.7, linewidths=0
        )
    for held, points, size in (
        (features.clusters, where.clusters, SMALL_STAR),
        (features.prototypes, where.prototypes, STAR),
    ):
        if held is not None:
            names = [features.class_names[label] for label in held.labels]
            colours = [look[name].colour for name in names] if mode == "class" else "white"
            ax.scatter(points[:, 0], points[:, 1], s=size, c=colours, marker="*", edgecolors="black", linewidths=0.6)


def figure_of(
    runs: Sequence[Run],
    kind: str,
    path: Path,
    *,
    domains: Sequence[str] | None = None,
    limit: int = 300,
    colour: str = "class",
) -> list[Path]:
    """Make a figure of the given kind from runs, grouped as in a table; say which files were written."""
    for what, given, allowed in (("kind", kind, KINDS), ("colour", colour, COLOURINGS)):
        if given not in allowed:
            raise unknown(what, given, allowed)
    groups = finished_groups(runs)
    if kind == "tsne":
        return tsne({panel: _first_features(group, limit, domains) for panel, group in groups.items()}, path, colour)
    if kind == "curves" and domains is None:
        return curves(groups, path)
    return by_domain(groups, path, domains)


def _first_features(
    group: Mapping[str, Sequence[Run]], limit: int, domains: Sequence[str] | None
) -> dict[str, Features]:
    """Features of each method's first seed: of the global model, or of the first client's of each domain."""
    found = {}
    for label, (run, *_) in group.items():
        own = {} if (run.path / MODEL).exists() else client_models(run)
        for client, file in own.items():
            found[f"{label}, {style.plain(client)}"] = collect_features(run, file, limit=limit)
        if not own:
            found[label] = collect_features(run, limit=limit)
    if domains is None:
        return found
    return {
        label: features.only([match_domain(name, features.domain_names) for name in domains])
        for label, features in found.items()
    }


def finished_groups(runs: Iterable[Run]) -> dict[str, dict[str, list[Run]]]:
    """The finished runs, arranged as in a table, with names that a figure can show."""
    done = [run for run in runs if run.finished is not None]
    if not done:
        raise UserError("no run is finished yet: a figure needs at least one (see `protolith resume`).")
    return {
        style.plain(panel): {style.plain(label): members for label, members in group.items()}
        for panel, group in group_runs(done).items()
    }


def _reader(value: str | Value | None, domain: str | None) -> Value:
    """How a number is taken from a line of metrics."""
    if callable(value):
        return value
    keys = (value or ("mean" if domain is None else "accuracy")).split(".") + ([] if domain is None else [domain])

    def read(line: Round) -> float | None:
        found: JsonValue = line.to_json()
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return float(found) if isinstance(found, int | float) and found == found else None

    return read


def _draw_panels(panels: Mapping[str, Mapping[str, Curve]], ylabel: str, columns: int = 4) -> Figure:
    labels = _labels(panels)
    look = style.looks(labels)
    with style.paper():
        figure, axes = style.panels(list(panels), labels, columns)
        for ax, group in zip(axes, panels.values(), strict=True):
            for label, found in group.items():
                _draw_curve(ax, found, look[label], thin=len(labels) > CROWD)
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            ax.margins(x=0.03)
        style.name_axes(axes, "communication round", ylabel)
        style.legend_below(figure, {label: style.line_key(look[label]) for label in labels})
    return figure


def _draw_curve(ax: Axes, found: Curve, look: Look, thin: bool) -> None:
    step = max(1, len(found.rounds) // MARKS)
    width, size = (0.9, 3.0) if thin else (None, None)
    ax.plot(
        found.rounds, found.means, color=look.colour, linestyle=look.line, marker=look.marker, markevery=step,
        linewidth=width, markersize=size, **style.OUTLINE,
    )  # fmt: skip
    several = [(r, m, s) for r, m, s in zip(found.rounds, found.means, found.spreads, strict=True) if s is not None]
    if several:
        rounds = [r for r, _, _ in several]
        low, high = [m - s for _, m, s in several], [m + s for _, m, s in several]
        ax.fill_between(rounds, low, high, color=look.colour, alpha=0.18, linewidth=0)


@dataclass(frozen=True)
class _Points:
    """Means and error bars of a series; no errors at all where every mean is of one seed."""

    means: list[float]
    errors: list[float] | None


def _points(values: Sequence[Sequence[float]]) -> _Points:
    spreads = [spread(seeds) for seeds in values]
    errors = [float("nan") if found is None else found for found in spreads]
    return _Points(
        [statistics.fmean(seeds) for seeds in values], errors if any(s is not None for s in spreads) else None
    )


def _draw_data(
    groups: Data,
    xlabel: str,
    ylabel: str,
    base: Mapping[str, float],
    base_label: str,
    draw: Callable[[Axes, Sequence[int], _Points, Look, int, int], None],
    key: Callable[[Look], Any],
) -> Figure:
    """What studies and bars share: panels, the values of the option along the axis, the base line, the legend."""
    labels = _labels(groups)
    for title in base:
        if title not in groups:
            raise unknown("panel in base", title, groups)
    look = style.looks([*labels, base_label] if base else labels)
    with style.paper():
        keys = {label: key(look[label]) for label in labels}
        if base:
            line = Line2D([], [], color=look[base_label].colour, linestyle="--", linewidth=1)
            keys.setdefault(base_label, line)
        figure, axes = style.panels(list(groups), list(keys))
        for ax, (title, group) in zip(axes, groups.items(), strict=True):
            values = list(dict.fromkeys(x for series in group.values() for x in series))
            for index, (label, series) in enumerate(group.items()):
                held = {values.index(x): seeds for x, seeds in series.items() if seeds}
                draw(ax, sorted(held), _points([held[x] for x in sorted(held)]), look[label], index, len(group))
            style.name_ticks(ax, [x if isinstance(x, str) else f"{x:g}" for x in values])
            if title in base:
                ax.axhline(base[title], color=look[base_label].colour, linestyle="--", linewidth=1, zorder=1)
        style.name_axes(axes, xlabel, ylabel)
        style.legend_below(figure, keys)
    return figure


def _labels(panels: Mapping[str, Mapping[str, object]]) -> list[str]:
    labels = list(dict.fromkeys(label for group in panels.values() for label in group))
    if not labels:
        raise UserError("there is nothing to draw: a figure needs at least one run or value.")
    return labels
