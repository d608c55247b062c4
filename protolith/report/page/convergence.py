"""Part 2: accuracy over rounds."""

from protolith.report.figures import ACCURACY, curve
from protolith.report.page.html import Html, join, plot_text, select, tag
from protolith.report.page.plots import Figures, Trace, View, line_and_band, rounds_axis
from protolith.report.page.study import Setting, Study
from protolith.runs.directory import Metrics


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
            _unequal(setting),
        ]
    )


def _view(setting: Setting, domain: str | None) -> View:
    def value(line: Metrics) -> float | None:
        found = line.get("mean") if domain is None else line.get("accuracy", {}).get(domain)
        return None if found is None else float(found)

    data: list[Trace] = []
    for label, runs in setting.methods.items():
        found = curve([run.directory for run in runs], value)
        if found.rounds:
            data += line_and_band(label, setting.looks[label], found.rounds, found.means, found.spreads)
    data.sort(key=lambda trace: "fill" not in trace)  # no band lies over a line
    title = f"{ACCURACY}, {plot_text(domain) if domain else 'mean of all domains'}"
    layout = {
        "xaxis": rounds_axis(max(len(run.metrics) for run in setting.runs)),
        "yaxis": {"title": {"text": title}},
        "hovermode": "x unified",
        "showlegend": True,
    }
    return View(data, layout)


def _unequal(setting: Setting) -> Html:
    """Say where a line is the mean of fewer seeds than another."""
    lengths = {run.path.name: len(run.metrics) for run in setting.runs}
    if len(set(lengths.values())) < 2:
        return Html()
    most = max(lengths.values())
    short = [f"{name} has {length}" for name, length in lengths.items() if length < most]
    words = ", ".join(short[:6]) + (f" and {len(short) - 6} more" if len(short) > 6 else "")
    return tag("p", f"Runs of unequal length: the longest has {most} rounds, {words}.", class_="missing")
