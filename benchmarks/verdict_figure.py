"""The verdict as a picture, docs/images/verdict.svg: each method's gain with its interval, a panel a data set.

Written as SVG by hand: text stays text, is sharp at the width of a telephone, and follows the reader's light or dark.
"""

import statistics

from measured_runs import BASE, Measured, ends, measured

ROWS = ("I2PFL", "FPL", "FedAPC", "FedCode", "FedAvg + styles", "Strata")
PANELS = {"Office-Caltech10": "office10", "Digits": "digits", "PACS": "pacs"}
LONGER = "digits-longer"  # other runs of Digits, of more rounds
WIDTH, LEFT, RIGHT, LINE, HEAD, AXIS = 400, 110, 350, 18, 44, 36  # what is left of the plot, its end, heights
LOWEST, HIGHEST = -20, 30  # of the axis, in points
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #222 }
  .title { font-weight: 600 } .small { font-size: 11px; fill: #666 }
  .end { text-anchor: end } .mid { text-anchor: middle } .page { fill: #fff }
  .grid { stroke: #ddd } .zero { stroke: #888 }
  .theirs { stroke: #0072b2; fill: #0072b2 } .ours { stroke: #c04f00; fill: #c04f00 } .later { fill: #fff }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .small { fill: #aaa } .page { fill: #1e2129 } .grid { stroke: #3a3f4b } .zero { stroke: #999 }
    .theirs { stroke: #56b4e9; fill: #56b4e9 } .ours { stroke: #f28e3c; fill: #f28e3c } .later { fill: #1e2129 }
  }
"""


def across(points: float) -> str:
    """Where a gain lies from left to right."""
    return f"{LEFT + (points - LOWEST) / (HIGHEST - LOWEST) * (RIGHT - LEFT):.1f}"


def picture() -> str:
    """All panels, one below the other, on one axis."""
    parts: list[str] = []
    top = 0
    for title, name in PANELS.items():
        parts += panel(title, measured(name), top)
        top += HEAD + LINE * len(ROWS)
    parts += axis(top)
    height = top + AXIS + LINE
    said = "Gain over FedAvg in points, by method and data set; the table of the results has every number."
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{said}">'
    page = f'<rect class="page" width="{WIDTH}" height="{height}" rx="6"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>"]) + "\n"


def panel(title: str, found: Measured, top: int) -> list[str]:
    """One data set: its name, what FedAvg has, and a line for each method."""
    seeds, rounds = len(found.experiment.seeds), len(next(iter(found.rows[BASE].values())).runs[0].rounds)
    how = f"{rounds} rounds, {seeds} seed{'s' if seeds > 1 else ''}; FedAvg {statistics.fmean(found.of(BASE)):.1f} %"
    foot = top + HEAD + LINE * len(ROWS)
    parts = [text(8, top + 20, title, "title"), text(8, top + 35, how, "small")]
    for points in range(LOWEST, HIGHEST + 1, 10):
        look = "zero" if points == 0 else "grid"
        parts.append(f'<path class="{look}" d="M{across(points)} {top + HEAD - 4}V{foot - 4}"/>')
    for row, y in zip(ROWS, range(top + HEAD + 6, foot, LINE), strict=True):
        parts += line(row, found, y)
    return parts


def line(row: str, found: Measured, y: int) -> list[str]:
    """One method: its name, its interval where there are several seeds, its dot, its gain as a number."""
    gains, look = found.gains(row), "ours" if row in ROWS[4:] else "theirs"
    parts = [text(8, y + 4, row)]
    if len(gains) > 1:
        low, high = ends(gains)
        parts.append(f'<path class="{look}" stroke-width="2" d="M{across(low)} {y}H{across(high)}"/>')
    later = measured(LONGER)
    if found.dataset == later.dataset and row in later.rows:
        spot = across(statistics.fmean(later.gains(row)))
        parts.append(f'<circle class="{look} later" cx="{spot}" cy="{y}" r="4" stroke-width="1.5"/>')
    middle = statistics.fmean(gains)
    parts.append(f'<circle class="{look}" cx="{across(middle)}" cy="{y}" r="4.5"/>')
    return [*parts, text(WIDTH - 8, y + 4, f"{middle:+.1f}{found.mark(row)}", "end")]


def axis(top: int) -> list[str]:
    """The numbers below the panels, and what they are."""
    numbers = [
        text(across(points), top + 12, f"{points:+d}" if points else "0", "small mid")
        for points in range(LOWEST, HIGHEST + 1, 10)
    ]
    rounds = len(next(iter(measured(LONGER).rows[BASE].values())).runs[0].rounds)
    return [
        *numbers,
        text(across(5), top + 28, "gain over FedAvg, points; line: 95 % interval", "small mid"),
        text(across(5), top + 44, f"hollow: after {rounds} rounds, other runs", "small mid"),
    ]


def text(x: float | str, y: int, words: str, look: str = "") -> str:
    """Words at a place."""
    return f'<text x="{x}" y="{y}"{f" class={look!r}" if look else ""}>{words}</text>'
