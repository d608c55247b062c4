"""The page of measured results, docs/results.md, and its figures, from results/measured/runs.jsonl.

    python benchmarks/results_page.py

The words stand in docs/results.md.in; what is in double braces there is computed here, so no number is typed. So is
what stands between the marks `measured` and `end` of the pages that repeat a table.
Every value is also written to results/measured/cells.csv beside the run that it comes from.
"""

import csv
import io
import json
import re
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import verdict_figure
from measured_runs import BASE, MEASURED, ROOT, Measured, Values, ends, measured

from protolith.experiments.printed import printed_table
from protolith.runs.round import Round

FIGURES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", ROOT / "docs" / "methods" / "strata.md"]  # that repeat a table, between two marks
FOUR = ("I2PFL", "FPL", "FedAPC", "FedCode")
OURS = ("FedAvg + styles", "Strata", "FPL + styles", "I2PFL + styles", "I2PFL + Strata")
# What the papers print for a method without one of its parts: the table, the data set, that row and the whole's.
ABLATIONS = {
    "I2PFL without GPCL": ("i2pfl_table4", "Office-10", "w/o L_{GPCL}", "Ours"),
    "I2PFL without APA": ("i2pfl_table4", "Office-10", "w/o L_{APA}", "Ours"),
    "I2PFL without EMA": ("i2pfl_table4", "Office-10", "w/o EMA", "Ours"),
    "I2PFL, averaging": ("i2pfl_table5", "Office-10", "Averaging", "Reweighting"),
    "FPL without CPCL": ("fpl_table1", "Office Caltech", "UPCR only", "CPCL+UPCR"),
    "FPL without UPCR": ("fpl_table1", "Office Caltech", "CPCL only", "CPCL+UPCR"),
    "FedAPC without augmentation": ("fedapc_table2", "Office-10", "w/o Augmentation", "FedAPC (Ours)"),
}


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean ± standard deviation; of one value, the value; of none, a dash."""
    if not values:
        return "–"
    text = f"{statistics.fmean(values):{sign}.1f}"
    return f"{text} ± {statistics.stdev(values):.1f}" if len(values) > 1 else text


def interval(values: Sequence[float]) -> str:
    """Where the mean of more seeds would be expected, with 95 % confidence, by Student's t."""
    if len(values) < 2:
        return "–"
    low, high = ends(values)
    return f"{low:+.1f} to {high:+.1f}"


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def unfinished(found: Measured) -> str:
    """What the reader of a table must know about runs that are not there."""
    how_many = "1 run is" if found.missing == 1 else f"{found.missing} runs are"
    return f"\n\n*{how_many} not finished and left out.*" if found.missing else ""


def table(name: str) -> str:
    """Accuracy by domain, the gain over FedAvg, and what the papers print."""
    found = measured(name)
    papers = [(paper, printed_table(file)[theirs]) for paper, file, theirs in found.papers]
    best = max(statistics.fmean(found.of(row)) for row in found.rows)
    lines = []
    for row in found.rows:
        cells = [spread(found.of(row, column)) for column in found.columns]
        if statistics.fmean(found.of(row)) == best:
            cells[-1] = f"**{cells[-1]}**"
        printed = [_printed(values, row) for _, values in papers]
        lines.append([row + found.mark(row), *cells, _gain(found, row), *printed])
    head = ["method", *found.columns, "gain", *(f"{paper}'s paper" for paper, _ in papers)]
    return grid(head, lines) + unfinished(found)


def _gain(found: Measured, row: str, column: str = "mean") -> str:
    return "" if row == BASE else spread(found.gains(row, column), "+")


def _printed(values: dict[str, Values], row: str) -> str:
    return f"{values[row]['mean']:.1f}" if row in values else ""


def verdict() -> str:
    """The papers' methods and ours on every data set: gains, and in brackets what is printed."""
    names = ("office10", "digits", "digits-longer", "pacs")
    office, *others = tables = [measured(name) for name in names]
    base = [spread(found.of(BASE)) for found in others]
    lines = [[f"{BASE}: accuracy", spread(office.of(BASE)), "", spread(office.of(BASE, "images")), *base, "1.00"]]
    for row in [*FOUR, *OURS]:
        each = [_beside_print(found, row) for found in tables]
        by_images = _gain(office, row, "images")
        times = f"{office.seconds(row) / office.seconds(BASE):.2f}"
        lines.append([row, each[0], interval(office.gains(row)), by_images, *each[1:], times])
    few = ["Digits, 15 rounds", "Digits, 30 rounds", "PACS, 15 rounds"]
    head = ["method", "Office-Caltech10, 40 rounds", "95 % interval", "by images", *few, "time, × FedAvg"]
    return grid(head, lines)


def front() -> str:
    """The verdict in six rows, for the first page."""
    tables = [measured(name) for name in ("office10", "digits", "pacs")]
    lines = [[f"{BASE}: accuracy", *(spread(found.of(BASE)) for found in tables)]]
    lines += [[row, *(_beside_print(found, row) for found in tables)] for row in (*FOUR, "Strata")]
    return grid(["method", "Office-Caltech10, three seeds", "Digits, one seed", "PACS, one seed"], lines)


def _beside_print(found: Measured, row: str) -> str:
    """A gain, and in brackets that of the method's own paper, or of the first that prints it."""
    if row not in found.rows:
        return "–"
    own = sorted(found.papers, key=lambda paper: paper[0] != row)
    printed = [stated(file, theirs, row) for _, file, theirs in own if row in printed_table(file)[theirs]]
    return spread(found.gains(row), "+") + found.mark(row) + (f" ({printed[0]})" if printed else "")


def gains(name: str) -> str:
    """Gains over FedAvg, paired by seed, with the interval that few seeds leave."""
    found = measured(name)
    lines = []
    for row in found.by_accuracy():
        if row != BASE:
            values, by_images = found.gains(row), found.gains(row, "images")
            each = ", ".join(f"{value:+.1f}" for value in values)
            lines.append(
                [row, spread(values, "+"), interval(values), each, spread(by_images, "+"), interval(by_images)]
            )
    head = ["method", "gain over FedAvg", "95 % interval", "seed by seed", "gain by images", "95 % interval"]
    return grid(head, lines)


def orders(name: str) -> str:
    """Whether the methods stand in the order in which the papers print them."""
    found = measured(name)
    lines = []
    for paper, file, theirs in found.papers:
        printed = {row: values["mean"] for row, values in printed_table(file)[theirs].items() if row in found.rows}
        if len(printed) < 2:
            continue
        names = sorted(printed, key=lambda row: printed[row])
        ours = sorted(printed, key=lambda row: statistics.fmean(found.of(row)))
        pairs = [(low, high) for i, low in enumerate(names) for high in names[i + 1 :]]
        kept = sum(ours.index(low) < ours.index(high) for low, high in pairs)
        lines.append([paper, " < ".join(names), " < ".join(ours), f"{kept} of {len(pairs)}"])
    return grid(["paper", "its order", "ours", "pairs in the same order"], lines)


def cost(name: str) -> str:
    """What a round takes, beside what it brings."""
    found = measured(name)
    lines = []
    for row, seeds in found.rows.items():
        first = next(iter(seeds.values()))
        traffic = [f"{first.megabytes(way):.3f}" for way in ("up", "down")]
        times = found.seconds(row) / found.seconds(BASE)
        lines.append([row, spread(found.of(row)), f"{found.seconds(row):.1f}", f"{times:.2f}", *traffic])
    return grid(["method", "accuracy", "s a round", "× FedAvg", "MB up", "MB down"], lines)


def parts(name: str) -> str:
    """An ablation: what the method loses without a part. Its rows begin with the method's name."""
    found = measured(name)
    printed = {row: stated(*ABLATIONS[row]) for row in found.rows if row in ABLATIONS}
    lines = []
    for row in found.rows:
        whole = re.split(r" without|,", row)[0]
        against = "" if whole == row or whole not in found.rows else spread(found.gains(row, base=whole), "+")
        cells = [spread(found.of(row, column)) for column in found.columns]
        lines.append([row, *cells, against, *([printed.get(row, "")] if printed else []), _gain(found, row)])
    papers = ["in its paper"] if printed else []
    return grid(["variant", *found.columns, "against the whole", *papers, "against FedAvg"], lines) + unfinished(found)


def stated(file: str, dataset: str, row: str, base: str = BASE, column: str = "mean") -> str:
    """How far a paper prints one row above another."""
    printed = printed_table(file)[dataset]
    return f"{printed[row][column] - printed[base][column]:+.1f}"


def across(name: str) -> str:
    """FedCode's measures."""
    found = measured(name)
    first = next(iter(found.rows.values()))
    columns = list(next(iter(first.values())).cross)
    lines = [
        [row, *(spread([seed.cross[column] for seed in seeds.values()]) for column in columns)]
        for row, seeds in found.rows.items()
    ]
    return grid(["method", *columns], lines) + unfinished(found)


def choices(name: str) -> str:
    """What was tried on training images that no client holds."""
    lines = [json.loads(line) for line in (MEASURED / f"{name}-choice.jsonl").read_text().splitlines()]
    seeds = sorted({line["seed"] for line in lines})
    found = {(line["variant"], line["seed"]): line for line in lines}
    rows = [
        [variant, *(f"{found[variant, s]['mean']:.1f}" if (variant, s) in found else "" for s in seeds)]
        for variant in dict.fromkeys(line["variant"] for line in lines)
    ]
    return grid(["variant", *(f"seed {seed}" for seed in seeds)], rows)


def gain(name: str, row: str, column: str = "mean", base: str = BASE) -> str:
    """One gain, and of how many seeds where some are missing."""
    found = measured(name)
    values, seeds = found.gains(row, column, base), len(found.experiment.seeds)
    return spread(values, "+") + (f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else "")


def lead(name: str, row: str, column: str, base: str = BASE) -> str:
    """How far a row is above another by one of FedCode's measures."""
    mine, other = (measured(name).rows[which] for which in (row, base))
    return spread([mine[seed].cross[column] - other[seed].cross[column] for seed in mine if seed in other], "+")


def early(name: str, row: str, rounds: str) -> str:
    """The gain over FedAvg, had all runs ended after so many rounds."""
    mine, base = (measured(name).rows[which] for which in (row, BASE))
    return spread([mine[seed].after(int(rounds)) - base[seed].after(int(rounds)) for seed in mine if seed in base], "+")


def again(first: str, second: str, rounds: str) -> str:
    """What the same rows of two experiments gave after so many rounds."""
    tables = measured(first), measured(second)
    lines = []
    for row in tables[1].rows:
        ends = [statistics.fmean(seed.after(int(rounds)) for seed in found.rows[row].values()) for found in tables]
        lines.append([row, *(f"{end:.1f}" for end in ends), f"{ends[1] - ends[0]:+.1f}"])
    return grid(["method", f"`{first}.toml`", f"`{second}.toml`", "difference"], lines)


def at(name: str, row: str, number: str) -> str:
    """The mean over domains in one round, counted from 1."""
    return f"{statistics.fmean(line.mean for line in _lines(name, row, number)):.1f}"


def loss(name: str, row: str, term: str, number: str) -> str:
    """One term of the training loss in one round, counted from 1."""
    return f"{statistics.fmean(line.loss[term] for line in _lines(name, row, number)):.3g}"


def _lines(name: str, row: str, number: str) -> list[Round]:
    """One round, seed by seed."""
    return [seed.runs[0].rounds[int(number) - 1] for seed in measured(name).rows[row].values()]


def claimed(name: str, paper: str, row: str) -> str:
    """The gain over FedAvg that a paper prints."""
    file, theirs = next((file, theirs) for who, file, theirs in measured(name).papers if who == paper)
    return stated(file, theirs, row)


TABLES = (verdict, front, table, gains, orders, cost, parts, across, again, choices)
VALUES = (gain, lead, early, at, loss, claimed, stated)
FILLERS: dict[str, Callable[..., str]] = {filler.__name__: filler for filler in (*TABLES, *VALUES)}


def fill(what: str) -> str:
    """Compute `table | office10` and the like."""
    name, *words = arguments(what)
    return FILLERS[name](*words)


def arguments(text: str) -> list[str]:
    """The words between the bars."""
    return [word.strip() for word in text.split("|")]


def filled(template: str) -> str:
    """Put what was measured in the place of `{{what | experiment | …}}`."""
    return re.sub(r"\{\{(.+?)\}\}", lambda match: fill(match[1]), template)


def refreshed(page: str) -> str:
    """Put what was measured between the marks `measured: what | experiment | …` and `end` of a page."""
    marks = re.compile(r"(<!-- measured: (.+?) -->\n).*?(<!-- end -->)", re.S)
    return marks.sub(lambda match: f"{match[1]}{fill(match[2])}\n{match[3]}", page)


def cells() -> str:
    """Every value and where it comes from, as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["experiment", "data set", "row", "seed", "column", "value", "run"])
    for path in sorted(MEASURED.glob("*.toml")):
        found = measured(path.stem)
        for row, seeds in found.rows.items():
            for number, seed in seeds.items():
                for run, summary in zip(seed.runs, seed.summaries, strict=True):
                    for column, value in {**summary.accuracy, **seed.cross}.items():
                        writer.writerow([path.stem, found.dataset, row, number, column, f"{value:.4f}", run.path.name])
    return out.getvalue()


def draw() -> None:
    """The verdict, convergence, and accuracy against what it costs."""
    from protolith.report import figures, style

    (FIGURES / "verdict.svg").write_text(verdict_figure.picture())
    found = measured("office10")
    panels = _panels(found)
    runs = {
        title: {row: [seed.runs[0] for seed in found.rows[row].values()] for row in rows}
        for title, rows in panels.items()
    }
    curves = figures.draw_curves(runs)
    most = max(ax.get_ylim()[1] for ax in curves.axes)
    for ax in curves.axes:
        ax.set_ylim(0, most)  # the panels are compared with each other
    style.save(curves, FIGURES / "results-curves.png")
    with style.paper():
        figure = style.Figure(figsize=(style.WIDEST, 2.8))
        axes = figure.subplots(1, len(panels), sharex=True, sharey=True)
        for ax, (title, rows) in zip(axes, panels.items(), strict=True):
            _costs(ax, found, rows, style)
            ax.set(title=title, xlabel=f"time of a round, × {BASE}")
        axes[0].set_ylabel("accuracy (%)")
        entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=5)
        style.save(figure, FIGURES / "results-cost.png")
    for pdf in FIGURES.glob("results-*.pdf"):  # for papers; the page shows the pictures
        pdf.unlink()


def _panels(found: Measured) -> dict[str, list[str]]:
    """The rows in three groups, each beside FedAvg."""
    shown = [row for row in found.rows if "fixed" not in row]  # the control's lines lie on the others
    styled = [row for row in shown if "styles" in row or "Strata" in row]
    others = [row for row in shown if row not in (BASE, *styled, *FOUR)]
    panels = {"the papers' methods": FOUR, "what they compare with": others, "Strata, and with styles": styled}
    return {title: [BASE, *rows] for title, rows in panels.items()}


def _costs(ax: Any, found: Measured, rows: Sequence[str], style: Any) -> None:
    for row, look in style.looks(found.rows).items():
        if row in rows:
            values = found.of(row)
            ax.errorbar(
                found.seconds(row) / found.seconds(BASE), statistics.fmean(values), yerr=statistics.stdev(values),
                color=look.colour, marker=look.marker, linestyle="none", label=row, **style.OUTLINE,
            )  # fmt: skip
    ax.grid(True)


def main() -> None:
    """Write the page, what other pages repeat of it, the cells and the figures."""
    (ROOT / "docs" / "results.md").write_text(filled((ROOT / "docs" / "results.md.in").read_text()))
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
    (MEASURED / "cells.csv").write_text(cells())
    draw()


if __name__ == "__main__":
    main()
