"""Figures as plain data for plotly; theme, fonts and margins are the page's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protolith.report.page.html import Html, plot_text, tag
from protolith.report.style import Line, Look

Trace = dict[str, Any]
DASHES: dict[Line, str] = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "P": "cross", "X": "x",
}  # fmt: skip
GLYPHS = {"o": "●", "s": "■", "^": "▲", "D": "◆", "v": "▼", "P": "✚", "X": "✖"}
# Colours that a dark page would swallow, and what stands for them there.
DARK = {
    "#000000": "#F2F2F2",
    "#333333": "#F2F2F2",
    "#0072B2": "#4DA6E0",
    "#7F7F7F": "#A6A6A6",
    "#777777": "#A6A6A6",
    "#332288": "#9A8CF0",
    "#882255": "#D873A5",
    "#117733": "#35A85C",
    "#AA4499": "#CC77BE",
    "#999933": "#B5B54D",
}
MIDDLE = 0.46  # of Cividis: below it white text stands out more, above it black
FILL = "2E"  # opacity of a band, hexadecimal


@dataclass(frozen=True)
class View:
    """What a figure shows when its switch stands on a name."""

    data: list[Trace]
    layout: Mapping[str, object] = field(default_factory=dict)


@dataclass
class Figures:
    """The figures of a page, and the thumbnails that they show when a mouse is over a point."""

    held: dict[str, dict[str, object]] = field(default_factory=dict)
    thumbnails: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self, key: str, label: str, views: Sequence[View], *, group: str = "", height: int = 340, thumbnails: str = ""
    ) -> Html:
        """Take a figure in; what comes back is its place in the page. `label` says in words what is drawn."""
        self.held[key] = {
            "group": group,
            "thumbnails": thumbnails,
            "views": [{"data": view.data, "layout": _whole(view, height)} for view in views],
        }
        return tag("div", class_="chart", id=key, role="img", aria_label=label, style=f"min-height:{height}px")


def _whole(view: View, height: int) -> dict[str, object]:
    return {"height": height, **view.layout}


def swatch(colour: str, glyph: str = "●") -> Html:
    """A small mark in a colour, in the light and in the dark."""
    return tag("span", glyph, class_="swatch", aria_hidden="true", style=f"--c:{colour};--d:{DARK.get(colour, colour)}")


def legend(looks: Mapping[str, Look]) -> Html:
    """Names with their marks."""
    return tag(
        "ul",
        *(tag("li", swatch(look.colour, GLYPHS[look.marker]), name) for name, look in looks.items()),
        class_="legend",
    )


def line_and_band(
    name: str, look: Look, xs: Sequence[float], means: Sequence[float], spreads: Sequence[float | None]
) -> list[Trace]:
    """A line, and around it a band of one standard deviation where there are several seeds."""
    line: Trace = {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(name),
        "x": list(xs),
        "y": list(means),
        "line": {"color": look.colour, "dash": DASHES[look.line], "width": 2},
        "marker": {"color": look.colour, "symbol": SYMBOLS[look.marker], "size": 6},
        "hovertemplate": "%{y:.2f}",
    }
    around = [(x, mean, spread) for x, mean, spread in zip(xs, means, spreads, strict=True) if spread is not None]
    if not around:
        return [line]
    there, back = [m + s for _, m, s in around], [m - s for _, m, s in reversed(around)]
    steps = [x for x, _, _ in around]
    band: Trace = {
        "type": "scatter",
        "x": [*steps, *reversed(steps)],
        "y": there + back,
        "mode": "lines",
        "line": {"width": 0, "color": look.colour},
        "fill": "toself",
        "fillcolor": look.colour + FILL,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    return [band, line]


def heat_map(
    values: Sequence[Sequence[float | None]],
    columns: Sequence[str],
    rows: Sequence[str],
    *,
    digits: int = 0,
    limits: tuple[float, float] | None = None,
    unit: str = "",
    written: bool = True,
) -> View:
    """A map of numbers, the first row on top; the numbers are written in while there is room."""
    held = [value for row in values for value in row if value is not None]
    low, high = limits or (min(held, default=0.0), max(held, default=1.0))
    trace: Trace = {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "x": list(range(len(columns))),
        "y": list(range(len(rows))),
        "text": [[f"{plot_text(row)} · {plot_text(column)}" for column in columns] for row in rows],
        "hovertemplate": f"%{{text}}: %{{z:.{max(1, digits)}f}}{unit}<extra></extra>",
        "colorscale": "Cividis",
        "zmin": low,
        "zmax": high,
        "xgap": 1,
        "ygap": 1,
        "colorbar": {"thickness": 10, "len": 0.9, "outlinewidth": 0},
    }
    layout = map_axes(columns, rows)
    if written and len(columns) <= 12 and len(rows) <= 24:
        layout["annotations"] = _numbers(values, digits, low, high)
    return View([trace], layout)


def _numbers(values: Sequence[Sequence[float | None]], digits: int, low: float, high: float) -> list[dict[str, object]]:
    """The numbers of a map, black where the cell is light and white where it is dark."""
    return [
        {
            "x": x,
            "y": y,
            "text": f"{value:.{digits}f}",
            "showarrow": False,
            "font": {"size": 11, "color": "#000000" if value > low + MIDDLE * (high - low) else "#FFFFFF"},
        }
        for y, row in enumerate(values)
        for x, value in enumerate(row)
        if value is not None
    ]


def map_axes(columns: Sequence[str], rows: Sequence[str]) -> dict[str, object]:
    """Names along both sides of a map, without those for which there is no room."""
    return {
        "margin": {"l": 44, "r": 8, "t": 24, "b": 8},
        "xaxis": {**_names(columns, 16), "side": "top", "tickangle": -40 if _long(columns) else 0},
        "yaxis": {**_names(rows, 40), "autorange": "reversed"},
    }


def _names(names: Sequence[str], most: int) -> dict[str, object]:
    step = -(-len(names) // most)
    shown = list(range(0, len(names), step))
    words = [plot_text(names[index] if len(names[index]) <= 18 else names[index][:17] + "…") for index in shown]
    return {"tickvals": shown, "ticktext": words, "showgrid": False, "zeroline": False, "ticks": "", "type": "linear"}


def _long(names: Sequence[str]) -> bool:
    return sum(len(name) + 2 for name in names) > 40


def rounds_axis(last: int) -> dict[str, object]:
    """An axis of communication rounds up to the last: whole numbers only, and not more than fit."""
    return {"title": {"text": "communication round"}, "tickformat": "d", "dtick": max(1, -(-last // 8)), "tick0": 0}
