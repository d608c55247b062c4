"""The page of measured results, docs/results.md, and its figures, from the runs in results/measured.

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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from protolith.experiments.paper import Experiment, Reduction, directory_of, get_experiment, plan
from protolith.experiments.printed import printed_table
from protolith.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
MEASURED = ROOT / "results" / "measured"
RUNS = MEASURED / "runs"
FIGURES = ROOT / "docs" / "images"
PAGES = [ROOT / "README.md", ROOT / "docs" / "methods" / "strata.md"]  # that repeat a table, between two marks
# The papers that print our data sets: heading, table, their name of the data set. FedAPC's has other clients.
PAPERS = {
    "Office-Caltech10": [
        ("FPL", "fpl_table2", "Office Caltech"),
        ("I2PFL", "i2pfl_table2", "Office-10"),
        ("FedAPC", "fedapc_table1", "Office-10"),
    ],
    "Digits": [
        ("FPL", "fpl_table2", "Digits"),
        ("I2PFL", "i2pfl_table2", "Digits"),
        ("FedAPC", "fedapc_table1", "Digits"),
    ],
    "PACS": [("I2PFL", "i2pfl_table2", "PACS")],
}
UNSEEN = {  # where each domain in turn is left out
    "Office-Caltech10": [("I2PFL", "i2pfl_table3", "Office-10")],
    "PACS": [("I2PFL", "i2pfl_table3", "PACS")],
}
BASE = "FedAvg"

Values = dict[str, float]


@dataclass(frozen=True)
class Seed:
    """What one seed of a row gave, and the runs that it comes from: several where each domain is left out in turn."""

    runs: list[RunDirectory]
    summaries: list[dict[str, Any]]

    @property
    def accuracy(self) -> Values:
        """Per cent by domain, and their mean."""
        found = {name.rstrip("*"): value for summary in self.summaries for name, value in summary["accuracy"].items()}
        return {**found, "mean": statistics.fmean(found.values())}

    @property
    def cross(self) -> Values:
        """FedCode's measures, where the clients' own models were tested."""
        found = self.summaries[0].get("cross", {})
        return {name.upper(): found[name] for name in ("lta", "gata", "gasa", "cprr") if name in found}

    @property
    def seconds(self) -> list[float]:
        """Of its rounds."""
        return [line["seconds"]["total"] for run in self.runs for line in run.metrics()]

    def megabytes(self, way: str) -> float:
        """What one client sends (up) or receives (down) in a round."""
        (run, *_), (summary, *_) = self.runs, self.summaries
        return float(summary[f"bytes_{way}"] / sum(line["clients"] for line in run.metrics()) / 1e6)


@dataclass(frozen=True)
class Measured:
    """One data set of an experiment: its finished rows by seed."""

    experiment: Experiment
    dataset: str
    rows: dict[str, dict[int, Seed]]
    missing: int

    def of(self, row: str, column: str = "mean") -> list[float]:
        """The values of a row over its seeds."""
        return [seed.accuracy[column] for seed in self.rows[row].values()]

    def gains(self, row: str, column: str = "mean", base: str = BASE) -> list[float]:
        """How far a row is above another, seed by seed."""
        mine, other = self.rows[row], self.rows[base]
        return [mine[seed].accuracy[column] - other[seed].accuracy[column] for seed in mine if seed in other]

    def by_accuracy(self) -> list[str]:
        """The rows, the best first."""
        return sorted(self.rows, key=lambda row: -statistics.fmean(self.of(row)))

    def seconds(self, row: str) -> float:
        """Of a round: what its fastest tenth took at most, which other work on the machine disturbs least."""
        every = [seconds for seed in self.rows[row].values() for seconds in seed.seconds]
        return statistics.quantiles(every, n=10)[0]

    def megabytes(self, row: str) -> float:
        """What one client sends and receives in a round."""
        first = next(iter(self.rows[row].values()))
        return first.megabytes("up") + first.megabytes("down")

    @property
    def papers(self) -> list[tuple[str, str, str]]:
        """The papers that print it."""
        left_out = any(dataset.leave_out for dataset in self.experiment.datasets)
        return (UNSEEN if left_out else PAPERS)[self.dataset]

    @property
    def columns(self) -> list[str]:
        """The domains, and the mean."""
        return list(next(iter(next(iter(self.rows.values())).values())).accuracy)


@cache
def measured(name: str, dataset: str = "") -> Measured:
    """Read what is finished of an experiment; one with two data sets has to be told which."""
    experiment = get_experiment(str(MEASURED / f"{name}.toml"))
    dataset = dataset or experiment.datasets[0].name
    jobs = [job for job in plan(experiment, Reduction()) if job.dataset == dataset]
    rows: dict[str, dict[int, Seed]] = {}
    missing = 0
    for row in experiment.rows:
        for seed in experiment.seeds:
            mine = [job for job in jobs if job.variant == row and job.config.seed == seed]
            runs = [directory_of(job, RUNS) for job in mine]
            summaries = [summary for run in runs if (summary := run.summary())]
            if len(summaries) == len(mine):
                rows.setdefault(row.name, {})[seed] = Seed(runs, summaries)
            else:
                missing += len(mine) - len(summaries)
    return Measured(experiment, dataset, rows, missing)


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
    half = student.ppf(0.975, len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    middle = statistics.fmean(values)
    return f"{middle - half:+.1f} to {middle + half:+.1f}"


def grid(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = "|---|" + "---:|" * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def unfinished(found: Measured) -> str:
    """What the reader of a table must know about runs that are not there."""
    how_many = "1 run is" if found.missing == 1 else f"{found.missing} runs are"
    return f"\n\n*{how_many} not finished and left out.*" if found.missing else ""


def table(name: str, dataset: str = "") -> str:
    """Accuracy by domain, the gain over FedAvg, and what the papers print."""
    found = measured(name, dataset)
    papers = [(paper, printed_table(file)[theirs]) for paper, file, theirs in found.papers]
    best = max(statistics.fmean(found.of(row)) for row in found.rows)
    lines = []
    for row in found.rows:
        cells = [spread(found.of(row, column)) for column in found.columns]
        if statistics.fmean(found.of(row)) == best:
            cells[-1] = f"**{cells[-1]}**"
        printed = [_printed(values, row) for _, values in papers]
        lines.append([row, *cells, _gain(found, row), *printed, _seeds(found, row)])
    head = ["method", *found.columns, "gain", *(f"{paper}'s paper" for paper, _ in papers), "seeds"]
    return grid(head, lines) + unfinished(found)


def _gain(found: Measured, row: str) -> str:
    return "" if row == BASE else spread(found.gains(row), "+")


def _seeds(found: Measured, row: str) -> str:
    """How many seeds a row has, and its gain where FedAvg has fewer."""
    own, paired = len(found.rows[row]), len(found.gains(row))
    return str(own) if own == paired else f"{own} (gain: {paired})"


def _printed(values: dict[str, Values], row: str) -> str:
    return f"{values[row]['mean']:.1f}" if row in values else ""


def short(name: str, dataset: str = "") -> str:
    """Accuracy and gain in one small table, the best first."""
    found = measured(name, dataset)
    lines = [[row, spread(found.of(row)), _gain(found, row), _seeds(found, row)] for row in found.by_accuracy()]
    return grid(["method", "accuracy", "gain over FedAvg", "seeds"], lines) + unfinished(found)


def gains(name: str, dataset: str = "") -> str:
    """Gains over FedAvg, paired by seed, with the interval that few seeds leave."""
    found = measured(name, dataset)
    lines = [
        [row, spread(found.gains(row), "+"), interval(found.gains(row)), _each(found.gains(row))]
        for row in found.by_accuracy()
        if row != BASE
    ]
    return grid(["method", "gain over FedAvg", "95 % interval", "seed by seed"], lines)


def _each(values: Sequence[float]) -> str:
    return ", ".join(f"{value:+.1f}" for value in values)


def orders(name: str, dataset: str = "") -> str:
    """Whether the methods stand in the order in which the papers print them."""
    found = measured(name, dataset)
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


def cost(name: str, dataset: str = "") -> str:
    """What a round takes, beside what it brings."""
    found = measured(name, dataset)
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
    lines = []
    for row in found.rows:
        whole = re.split(r" without|,", row)[0]
        against = "" if whole == row or whole not in found.rows else spread(found.gains(row, base=whole), "+")
        cells = [spread(found.of(row, column)) for column in found.columns]
        lines.append([row, *cells, against, _gain(found, row)])
    return grid(["variant", *found.columns, "against the whole", "against FedAvg"], lines) + unfinished(found)


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


def gain(name: str, row: str, dataset: str = "", column: str = "mean", base: str = BASE) -> str:
    """One gain, and of how many seeds where some are missing."""
    found = measured(name, dataset)
    values, seeds = found.gains(row, column, base), len(found.experiment.seeds)
    return spread(values, "+") + (f" ({len(values)} of {seeds} seeds)" if len(values) < seeds else "")


def claimed(name: str, paper: str, row: str, dataset: str = "") -> str:
    """The gain over FedAvg that a paper prints."""
    file, theirs = next((file, theirs) for who, file, theirs in measured(name, dataset).papers if who == paper)
    printed = printed_table(file)[theirs]
    return f"{printed[row]['mean'] - printed[BASE]['mean']:+.1f}"


FILLERS: dict[str, Callable[..., str]] = {
    filler.__name__: filler for filler in (table, short, gains, orders, cost, parts, across, choices, gain, claimed)
}


def fill(what: str) -> str:
    """Compute `table | office10` and the like."""
    name, *words = arguments(what)
    return FILLERS[name](*words)


def arguments(text: str) -> list[str]:
    """The words between the bars."""
    return [word.strip() for word in text.split("|")]


def is_measured(name: str, dataset: str = "", row: str = BASE) -> bool:
    """Whether a row has a seed."""
    return row in measured(name, dataset).rows


def filled(template: str) -> str:
    """Put what was measured in the place of `{{what | experiment | …}}`.

    What stands between `{{if | experiment | data set | row}}` and `{{end}}` is left out as long as the row, FedAvg
    where none is named, is not measured there.
    """
    blocks = re.compile(r"\{\{if \|(.+?)\}\}\n(.*?)\{\{end\}\}\n", re.S)
    whole = blocks.sub(lambda match: match[2] if is_measured(*arguments(match[1])) else "", template)
    return re.sub(r"\{\{(.+?)\}\}", lambda match: fill(match[1]), whole)


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
        for dataset in get_experiment(str(path)).datasets:
            for row, seeds in measured(path.stem, dataset.name).rows.items():
                for number, seed in seeds.items():
                    for run, summary in zip(seed.runs, seed.summaries, strict=True):
                        for column, value in summary["accuracy"].items():
                            writer.writerow(
                                [path.stem, dataset.name, row, number, column, f"{value:.4f}", run.path.name]
                            )
    return out.getvalue()


def draw() -> None:
    """Convergence, and accuracy against what it costs."""
    from protolith.report import figures, style

    found = measured("office10")
    shown = [row for row in found.rows if "fixed" not in row]  # the control's lines lie on the others
    styled = [row for row in shown if "styles" in row or "Strata" in row or row == BASE]
    panels = {"as printed": [row for row in shown if row not in styled or row == BASE], "with styles": styled}
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
        axes = figure.subplots(1, 2, sharey=True)
        for ax, what in zip(axes, ("time", "traffic"), strict=True):
            _costs(ax, found, what, style)
        axes[0].set_ylabel("accuracy (%)")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
        style.save(figure, FIGURES / "results-cost.png")
    for pdf in FIGURES.glob("results-*.pdf"):  # for papers; the page shows the pictures
        pdf.unlink()


def _costs(ax: Any, found: Measured, what: str, style: Any) -> None:
    cost = found.seconds if what == "time" else found.megabytes
    places = {row: cost(row) / cost(BASE) for row in found.rows}
    for row, look in style.looks(found.rows).items():
        values = found.of(row)
        error = statistics.stdev(values) if len(values) > 1 else None
        ax.errorbar(
            places[row], statistics.fmean(values), yerr=error, color=look.colour, marker=look.marker,
            linestyle="none", label=row, **style.OUTLINE,
        )  # fmt: skip
    ax.grid(True)
    ax.set(xlabel=f"{what} of a round, × {BASE}", xlim=(0.9, max(1.5, *places.values()) + 0.1))


def forget_places() -> None:
    """Leave out of the configuration of finished runs where the data lay."""
    for summary in RUNS.glob("*/summary.json"):
        config = summary.with_name("config.toml")
        config.write_text(re.sub(r"^data = .*$", 'data = ""', config.read_text(), flags=re.M))


def main() -> None:
    """Write the page, what other pages repeat of it, the cells and the figures."""
    forget_places()
    (ROOT / "docs" / "results.md").write_text(filled((ROOT / "docs" / "results.md.in").read_text()))
    for page in PAGES:
        page.write_text(refreshed(page.read_text()))
    (MEASURED / "cells.csv").write_text(cells())
    draw()


if __name__ == "__main__":
    main()
