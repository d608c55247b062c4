"""Part 2: accuracy over rounds."""

from collections.abc import Sequence
from dataclasses import replace

from protolith.report.figures import ACCURACY, curve
from protolith.report.page.html import Html, join, plot_text, select, tag
from protolith.report.page.plots import Figures, Trace, View, line_and_band, rounds_axis
from protolith.report.page.study import Setting, Study
from protolith.runs.attendance import lacking, sites_of, spans
from protolith.runs.round import Round
from protolith.runs.run import Run


def convergence(study: Study, figures: Figures) -> Html:
    """A figure for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    title = tag("h3", setting.title) if named else ""
    if not setting.domains:
        return join([title, tag("p", "No round has been tested yet.", class_="missing")])
    group = f"{setting.key}-rounds"
    shown = ["mean of all domains", *setting.domains] if len(setting.domains) > 1 else setting.domains
    views = [_view(setting, None if index == 0 and len(shown) > 1 else name) for index, name in enumerate(shown)]
    label = f"Accuracy over communication rounds of {', '.join(setting.methods)}"
    return join(
        [
            title,
            select(group, "Show", shown),
            figures.add(group, label, views, group=group, height=400),
            _incomplete(setting),
            _unequal(setting),
        ]
    )


def _view(setting: Setting, domain: str | None) -> View:
    def value(line: Round) -> float | None:
        return line.mean if domain is None else line.accuracy.get(domain)

    data: list[Trace] = []
    for label, runs in setting.methods.items():
        found = curve(runs, value)
        parts = _means_of_fewer(runs) if domain is None else {}
        if found.rounds:
            line = line_and_band(label, setting.looks[label], found.rounds, found.means, found.spreads)
            data += _broken(line, [round_ for part in parts.values() for round_ in part])
        for away, means in parts.items():
            look = replace(setting.looks[label], line=":")
            data += line_and_band(
                f"{label} without {away}", look, list(means), list(means.values()), [None] * len(means)
            )
    data.sort(key=lambda trace: "fill" not in trace)  # no band lies over a line
    title = f"{ACCURACY}, {plot_text(domain) if domain else 'mean of all domains'}"
    layout = {
        "xaxis": rounds_axis(max(len(run.rounds) for run in setting.runs)),
        "yaxis": {"title": {"text": title}},
        "hovermode": "x unified",
        "showlegend": True,
    }
    return View(data, layout)


def _means_of_fewer(runs: Sequence[Run]) -> dict[str, dict[int, float]]:
    """The rounds whose mean lacks sites, by the names of these: the mean of the seeds that lack the same."""
    found: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        sites = sites_of(run.rounds)
        for line in run.rounds:
            if line.mean is not None and (away := lacking(line, sites)):
                part = found.setdefault(", ".join(away), {})
                part.setdefault(line.round, []).append(line.mean)
    return {
        away: {round_: sum(part[round_]) / len(part[round_]) for round_ in sorted(part)} for away, part in found.items()
    }


def _broken(traces: list[Trace], gaps: Sequence[int]) -> list[Trace]:
    """The same line with a gap at some rounds."""
    line = traces[-1]
    there = dict(zip(line["x"], line["y"], strict=True))
    rounds = sorted({*there, *gaps})
    return [*traces[:-1], {**line, "x": rounds, "y": [there.get(round_) for round_ in rounds]}]


def _incomplete(setting: Setting) -> Html:
    """Say where a line breaks because not all sites were tested."""
    parts = [
        f"{label} without {away} in round(s) {spans(list(means))}"
        for label, runs in setting.methods.items()
        for away, means in _means_of_fewer(runs).items()
    ]
    words = (
        f"Where a site was not tested the mean's line breaks, and the mean of the others is dotted: {'; '.join(parts)}."
    )
    return tag("p", words, class_="missing") if parts else Html()


def _unequal(setting: Setting) -> Html:
    """Say where a line is the mean of fewer seeds than another."""
    lengths = {run.path.name: len(run.rounds) for run in setting.runs}
    if len(set(lengths.values())) < 2:
        return Html()
    most = max(lengths.values())
    short = [f"{name} has {length}" for name, length in lengths.items() if length < most]
    words = ", ".join(short[:6]) + (f" and {len(short) - 6} more" if len(short) > 6 else "")
    return tag("p", f"Runs of unequal length: the longest has {most} rounds, {words}.", class_="missing")
