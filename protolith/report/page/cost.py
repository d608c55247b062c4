"""Part 8: what it cost."""

import statistics
from collections.abc import Sequence

from protolith.report.page.html import Html, join, plot_text, table, tag
from protolith.report.page.plots import Figures, Trace, View, swatch
from protolith.report.page.study import Setting, Study
from protolith.report.style import BLUE, GREY, ORANGE, RED, SKY
from protolith.runs.run import Run

PHASES = {"train": BLUE, "evaluate": ORANGE, "checkpoint": GREY}
HEAD = ["method", "MB down", "MB up", "s training", "s testing", "s checkpoint", "s in all", "images/s"]


def cost(study: Study, figures: Figures) -> Html:
    """Bytes and seconds of a round, for each setting."""
    return join(_setting(setting, figures, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, figures: Figures, named: bool) -> Html:
    held = {label: found for label, runs in setting.methods.items() if (found := [run for run in runs if run.rounds])}
    title = tag("h3", setting.title) if named else ""
    if not held:
        return join([title, tag("p", "No round is done yet.", class_="missing")])
    rows = [[join([swatch(setting.looks[label].colour), label]), *_row(runs)] for label, runs in held.items()]
    names = [plot_text(label) for label in held]
    sent = [_megabytes(runs) for runs in held.values()]
    moved = [_bars("down", names, [down for down, _ in sent], SKY, "MB")]
    moved.append(_bars("up", names, [up for _, up in sent], RED, "MB"))
    spent = [
        _bars(phase, names, [seconds(runs, phase) or 0.0 for runs in held.values()], colour, "s")
        for phase, colour in PHASES.items()
    ]
    height = 130 + 34 * len(names)
    charts = [
        ("bytes", "Megabytes of a round, down to the clients and up from them", moved, height + 17 * len(names)),
        ("seconds", "Seconds of a round by phase", spent, height),
    ]
    drawn = [_chart(f"{setting.key}-{key}", words, data, tall, figures) for key, words, data, tall in charts]
    return join([title, table(HEAD, rows, "A round on average, over all rounds and seeds"), *drawn])


def _chart(key: str, words: str, data: list[Trace], height: int, figures: Figures) -> Html:
    layout = {
        "barmode": "stack" if key.endswith("seconds") else "group",
        "showlegend": True,
        "xaxis": {"title": {"text": "seconds a round" if key.endswith("seconds") else "MB a round"}},
        "yaxis": {"autorange": "reversed", "type": "category", "showgrid": False},
    }
    return tag("figure", tag("figcaption", words), figures.add(key, words, [View(data, layout)], height=height))


def _bars(name: str, names: Sequence[str], values: Sequence[float], colour: str, unit: str) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "y": list(names),
        "x": list(values),
        "marker": {"color": colour},
        "hovertemplate": f"%{{x:.3f}} {unit}",
    }


def _row(runs: Sequence[Run]) -> list[str]:
    phases = [seconds(runs, phase) for phase in (*PHASES, "total")]
    pace = images_per_second(runs)
    return [
        *(f"{sent:.2f}" for sent in _megabytes(runs)),
        *("–" if value is None else f"{value:.2f}" for value in phases),
        "–" if pace is None else f"{pace:,.0f}",
    ]


def _megabytes(runs: Sequence[Run]) -> tuple[float, float]:
    """What a round sends down to the clients, and up from them."""
    lines = [line for run in runs for line in run.rounds]
    down, up = (line.bytes_down for line in lines), (line.bytes_up for line in lines)
    return statistics.fmean(down) / 1e6, statistics.fmean(up) / 1e6


def seconds(runs: Sequence[Run], phase: str) -> float | None:
    """Mean seconds of a phase in a round."""
    found = [line.seconds[phase] for run in runs for line in run.rounds if phase in line.seconds]
    return statistics.fmean(found) if found else None


def images_per_second(runs: Sequence[Run]) -> float | None:
    """Training images that went through the network in a second of training, all clients together."""
    images = time = 0.0
    for run in runs:
        for line in run.rounds:
            if line.images is not None and (seconds := line.seconds.get("train")):
                images += line.images * run.config.training.epochs
                time += seconds
    return images / time if time else None
