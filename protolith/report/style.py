"""How the figures look: one look for each method in all of them, and the sizes and fonts of a paper."""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from typing import Any, Literal

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from protolith.errors import UserError
from protolith.files import write_bytes

# Okabe and Ito's colours, which people with every kind of colour vision can tell apart, without the yellow that
# white paper swallows.
BLUE, RED, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, BLACK, GREY = "#E69F00", "#56B4E9", "#000000", "#7F7F7F"
COLOURS = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)
# Tol's muted colours, made for the same purpose; for classes, of which there are more.
CLASS_COLOURS = (
    "#332288", "#CC6677", "#117733", "#88CCEE", "#DDCC77",
    "#882255", "#44AA99", "#999933", "#AA4499", "#777777",
)  # fmt: skip
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
Line = Literal["-", "--", "-.", ":"]
LINES: tuple[Line, ...] = ("-", "--", "-.", ":")
HATCHES: dict[Line, str] = {"-": "", "--": "////", "-.": "....", ":": "xxxx"}  # what bars have in place of lines

INK = "#333333"
OUTLINE: dict[str, Any] = {"markeredgecolor": "white", "markeredgewidth": 0.4}
SETTINGS: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.edgecolor": INK,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "hatch.linewidth": 0.5,
    "errorbar.capsize": 2,
    "errorbar.capthick": 0.8,
    "errorbar.elinewidth": 0.8,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,  # fonts are embedded as fonts, which publishers ask for
    "savefig.dpi": 300,
    "savefig.bbox": "tight",  # nothing is cut off, however long a label is
    "savefig.pad_inches": 0.03,
}
WIDEST = 7.0  # inches, the text of a page
WIDTHS = {1: 3.4, 2: 2.7, 3: 2.3}  # of a panel, by the number of panels in a row
NARROWEST, HEIGHT, LEGEND_LINE = 1.5, 1.9, 0.2
SIDE_TITLE, SIDE_LINE, GAP = 0.24, 0.165, 0.07  # of a grid of cells: titles of rows, lines of a legend, between cells
SUFFIXES = (".pdf", ".png", ".svg", ".eps", ".jpg", ".jpeg")


@dataclass(frozen=True)
class Look:
    """Colour, line and marker of a method."""

    colour: str
    line: Line
    marker: str

    @property
    def hatch(self) -> str:
        """What its bars are filled with besides the colour."""
        return HATCHES[self.line]


LOOKS = {
    "FedAvg": Look(GREY, "-", "o"),
    "FedProx": Look(SKY, "--", "s"),
    "MOON": Look(ORANGE, "-.", "^"),
    "FedDyn": Look(PURPLE, "--", "v"),
    "FedOpt": Look(BLACK, ":", "s"),
    "SCAFFOLD": Look(BLACK, "--", "P"),
    "FedProc": Look(GREEN, "--", "D"),
    "FedProto": Look(ORANGE, "-", "P"),
    "FedProto (original)": Look(ORANGE, ":", "P"),
    "FPL": Look(BLUE, "-", "s"),
    "FedPLVM": Look(SKY, "-", "^"),
    "I2PFL": Look(RED, "-", "D"),
    "FedAPC": Look(PURPLE, "-", "v"),
    "FedCode": Look(BLACK, "-", "X"),
    "FedBN": Look(SKY, ":", "v"),
    "FedPAC": Look(BLUE, "--", "o"),
    "FedALA": Look(GREEN, "-.", "s"),
    "COPA": Look(SKY, "-.", "D"),
    "FedGA": Look(PURPLE, "-.", "o"),
    "SOLO": Look(GREY, ":", "X"),
    "Strata": Look(GREEN, "-", "^"),
}


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """Give every label a look: a method its own, everything else one that is free in this figure.

    Of several variants of a method (`I2PFL, tau=0.05`, `I2PFL + styles`) each has the method's colour with another
    line, as long as there are lines and the figure is not about that method alone.
    """
    names = list(dict.fromkeys(labels))
    methods = {name: re.split(r", | \+ ", name)[0].removesuffix(" †") for name in names}
    found = {name: LOOKS[name] for name in names if name in LOOKS}
    every = [Look(c, line, m) for (line, c), m in zip(product(LINES, COLOURS), cycle(MARKERS), strict=False)]
    for name in names:
        own = [LOOKS[methods[name]]] if methods[name] in LOOKS else []
        alike = [look for look in every if own and look.colour == own[0].colour and len(set(methods.values())) > 1]
        used = {(look.colour, look.line) for look in found.values()}
        free = (look for look in [*own, *alike, *every] if (look.colour, look.line) not in used)
        if name not in found:
            found[name] = _with_free_marker(next(free, every[0]), found.values())
    return {name: found[name] for name in names}


def _with_free_marker(look: Look, others: Iterable[Look]) -> Look:
    """A look that can be told from the others of its colour where there are points and no lines."""
    taken = {other.marker for other in others if other.colour == look.colour}
    return replace(look, marker=next((m for m in (look.marker, *MARKERS) if m not in taken), look.marker))


def point_looks(names: Sequence[str], mode: str) -> dict[str, Look]:
    """Give every class or domain a look of its points."""
    colours = CLASS_COLOURS if mode == "class" else COLOURS
    look = {}
    for index, name in enumerate(names):
        # Classes change their marker when the colours are used up; domains, which are few, with every colour.
        mark = index // len(colours) if mode == "class" else index
        look[name] = Look(colours[index % len(colours)], "-", MARKERS[mark % len(MARKERS)])
    return look


def paper() -> AbstractContextManager[None]:
    """The settings of matplotlib while a figure is drawn or written."""
    return matplotlib.rc_context(SETTINGS)


def plain(text: str) -> str:
    """A name from the data, whose dollar signs are no formula."""
    return text.replace("$", r"\$")


def panels(titles: Sequence[str], labels: Sequence[str], columns: int = 4) -> tuple[Figure, list[Axes]]:
    """A figure with one panel for each title, and room for a legend of these labels below."""
    columns = min(columns, len(titles))
    rows = math.ceil(len(titles) / columns)
    panel = WIDTHS.get(columns, max(NARROWEST, WIDEST / columns))
    width = max(columns * panel, entry_width(labels))
    wrapped = [wrap(title, width / columns) for title in titles]
    height = rows * (HEIGHT + 0.14 * max(title.count("\n") for title in wrapped)) + (0.3 if columns == 1 else 0)
    below = LEGEND_LINE * math.ceil(len(labels) / legend_columns(labels, width))
    figure = Figure(figsize=(width, height + below))
    axes = [figure.add_subplot(rows, columns, index + 1) for index in range(len(titles))]
    for ax, title in zip(axes, wrapped, strict=True):
        ax.set_title(title, linespacing=1.0)
        ax.grid(True)
        ax.spines[["top", "right"]].set_visible(False)
    return figure, axes


def cells(
    columns: Sequence[str], blocks: Sequence[tuple[Sequence[str], Sequence[str]]]
) -> tuple[Figure, list[list[list[Axes]]]]:
    """A figure of square cells in blocks, each with the titles of its rows and room for its legend's entries.

    The places are computed here, so that the cells of all blocks stand below each other whatever their legends.
    """
    side = min(1.7, max(1.15, (WIDEST - 1.2) / len(columns)))
    titles = [wrap(column, side) for column in columns]
    above = 0.1 + 0.14 * max(title.count("\n") + 1 for title in titles)
    legend = max(
        side_columns(entries, len(rows) * side) * (entry_width(entries) - 0.3) + 0.15 for rows, entries in blocks
    )
    width = SIDE_TITLE + len(columns) * (side + GAP) + legend
    height = sum(above + len(rows) * (side + GAP) for rows, _ in blocks)
    figure = Figure(figsize=(width, height))
    figure.set_layout_engine("none")
    grids, top = [], height
    for rows, _ in blocks:
        top -= above
        grid = []
        for _ in rows:
            top -= side
            lefts = [SIDE_TITLE + index * (side + GAP) for index in range(len(columns))]
            places = [(left / width, top / height, side / width, side / height) for left in lefts]
            grid.append([figure.add_axes(place, xticks=[], yticks=[]) for place in places])
            top -= GAP
        grids.append(_titled(grid, rows, titles))
    return figure, grids


def _titled(grid: list[list[Axes]], rows: Sequence[str], columns: Sequence[str]) -> list[list[Axes]]:
    for line, row in zip(grid, rows, strict=True):
        line[0].set_ylabel(row)
    for ax, column in zip(grid[0], columns, strict=True):
        ax.set_title(column, linespacing=1.0)
    return grid


def side_columns(labels: Sequence[str], height: float) -> int:
    """How many columns a legend of a given height has."""
    return math.ceil((len(labels) + 1) * SIDE_LINE / height)


def name_axes(axes: Sequence[Axes], xlabel: str, ylabel: str) -> None:
    """Label the lowest panel of each column and the first of each row."""
    for index, ax in enumerate(axes):
        place = ax.get_subplotspec()
        assert place is not None
        if index + place.get_gridspec().ncols >= len(axes):
            ax.set_xlabel(xlabel)
        if place.is_first_col():
            ax.set_ylabel(ylabel)


def name_ticks(ax: Axes, names: Sequence[str]) -> None:
    """Write names along the x axis, evenly spaced, and aslant where they would touch."""
    ax.set_xticks(range(len(names)), names)
    if sum(0.1 + 0.05 * len(name) for name in names) > inner_width(ax):
        ax.tick_params(axis="x", labelrotation=30)
        for text in ax.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def inner_width(ax: Axes) -> float:
    """About how many inches wide the inside of a panel is."""
    place, figure = ax.get_subplotspec(), ax.get_figure(root=True)
    assert place is not None and figure is not None
    return 0.85 * figure.get_figwidth() / place.get_gridspec().ncols


def wrap(title: str, width: float) -> str:
    """Break a title into lines that are at most so many inches wide."""
    return "\n".join(textwrap.fill(line, max(8, int(width * 14))) for line in title.split("\n"))


def entry_width(labels: Sequence[str]) -> float:
    """The inches that the longest entry of a legend needs."""
    return 0.6 + 0.062 * max((len(label) for label in labels), default=0)


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many entries of a legend stand side by side."""
    return max(1, min(len(labels), int(width / entry_width(labels))))


def legend_below(figure: Figure, handles: Mapping[str, Any]) -> None:
    """One legend for all panels, below them."""
    columns = legend_columns(list(handles), figure.get_figwidth())
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=columns, columnspacing=1.4,
        handlelength=2.8, borderaxespad=0.1, borderpad=0.1,
    )  # fmt: skip


def legend_right(figure: Figure, grid: list[list[Axes]], handles: Mapping[str, Any], title: str) -> None:
    """One legend for a grid of cells, beside it."""
    first, last = grid[0][-1].get_position(), grid[-1][-1].get_position()
    columns = side_columns(list(handles), (first.y1 - last.y0) * figure.get_figheight())
    figure.legend(
        list(handles.values()), list(handles), loc="center left", bbox_to_anchor=(first.x1, (first.y1 + last.y0) / 2),
        ncols=columns, title=title, handletextpad=0.2, borderaxespad=0.2, labelspacing=0.3, columnspacing=0.6,
        handlelength=1.6,
    )  # fmt: skip


def line_key(look: Look) -> Line2D:
    """How a line stands in a legend."""
    return Line2D([], [], color=look.colour, linestyle=look.line, marker=look.marker, **OUTLINE)


def bar_key(look: Look) -> Patch:
    """How bars stand in a legend."""
    return Patch(facecolor=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0)


def point_key(look: Look) -> Line2D:
    """How points stand in a legend."""
    return Line2D([], [], color=look.colour, linestyle="", marker=look.marker, markersize=4.5, markeredgewidth=0)


def star_key(area: float) -> Line2D:
    """How the stars of prototypes stand in a legend."""
    edge: dict[str, Any] = {"markeredgecolor": "black", "markeredgewidth": 0.6}
    return Line2D([], [], color="white", linestyle="", marker="*", markersize=math.sqrt(area), **edge)


def save(figure: Figure, path: Path) -> list[Path]:
    """Write a figure as PDF and as PNG, whichever of them the path names; the same figure gives the same files."""
    stem = path.with_suffix("") if path.suffix.lower() in SUFFIXES else path
    written = [stem.with_name(stem.name + suffix) for suffix in (".pdf", ".png")]
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        pdf, png = io.BytesIO(), io.BytesIO()
        with paper():
            figure.savefig(pdf, format="pdf", metadata={"CreationDate": None})
            figure.savefig(png, format="png")
        for file, content in zip(written, (pdf, png), strict=True):
            write_bytes(file, content.getvalue())
    except OSError as error:
        raise UserError(f"the figure cannot be written to {path}: {error.strerror or error}.") from None
    return written
