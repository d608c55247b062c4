"""Tables of finished runs: rows are methods, columns are domains and their mean."""

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith.errors import UserError, unknown
from protolith.methods.registry import all_methods
from protolith.runs.directory import RunDirectory

FORMATS = ("text", "md", "csv", "latex")


@dataclass
class Row:
    """One method: its values over the seeds, by column."""

    method: str
    label: str
    values: dict[str, list[float]] = field(default_factory=dict)

    def cell(self, column: str) -> str:
        """Mean, and ± standard deviation where there are several seeds."""
        values = self.values.get(column, [])
        if not values:
            return "–"
        mean = f"{statistics.fmean(values):.2f}"
        return f"{mean} ± {statistics.stdev(values):.2f}" if len(values) > 1 else mean


@dataclass
class Table:
    """Rows under a header that says how they came about."""

    header: list[str]
    columns: list[str]
    rows: list[Row]
    footer: list[str]

    def best(self, column: str) -> str:
        """The method with the highest mean in a column, if there is more than one method."""
        means = {row.method: statistics.fmean(row.values[column]) for row in self.rows if row.values.get(column)}
        return max(means, key=lambda method: means[method]) if len(means) > 1 else ""


def find_runs(path: Path) -> list[RunDirectory]:
    """The run in a directory, or the runs below it."""
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    configs = [path / "config.toml"] if (path / "config.toml").is_file() else sorted(path.glob("*/config.toml"))
    if not configs:
        raise UserError(f"{path} holds no run: there is no config.toml in it or one level below.")
    return [RunDirectory.open(config.parent) for config in configs]


def build_table(runs: Sequence[RunDirectory]) -> Table:
    """Gather the summaries of finished runs."""
    done = [(run, summary) for run in runs if (summary := run.summary())]
    if not done:
        raise UserError("no run is finished yet: a table needs at least one (see `protolith resume`).")
    titles = {name: method.title for name, method in all_methods().items()}
    rows: dict[str, Row] = {}
    columns: list[str] = []
    for _, summary in done:
        label: str = titles.get(summary["method"]) or summary["method"]
        mark = "" if summary["accuracy_of"] == "the global model" else " †"
        row = rows.setdefault(summary["method"], Row(summary["method"], label + mark))
        for column, value in {**summary["accuracy"], "mean": summary["mean"]}.items():
            row.values.setdefault(column, []).append(value)
            if column not in columns:
                columns.append(column)
    columns.remove("mean")
    return Table(
        _header([s for _, s in done]), [*columns, "mean"], list(rows.values()), _footer(runs, [s for _, s in done])
    )


def _header(summaries: list[dict[str, Any]]) -> list[str]:
    def all_of(key: str) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(summary[key] for summary in summaries))

    return [
        f"task {all_of('task')} · protocol {all_of('protocol')} · {all_of('rounds')} rounds · seeds {all_of('seed')}",
        f"accuracy in per cent, {all_of('rule')}, never the best round",
    ]


def _footer(runs: Sequence[RunDirectory], summaries: list[dict[str, Any]]) -> list[str]:
    notes = list(dict.fromkeys(note for summary in summaries for note in summary["notes"]))
    if any(summary["accuracy_of"] != "the global model" for summary in summaries):
        notes.append("† of the clients' own models, each on its own domain")
    if unfinished := len(runs) - len(summaries):
        notes.append(f"{unfinished} run(s) not finished and left out")
    return notes


def render(table: Table, style: str) -> str:
    """Write a table out as text, Markdown, CSV or LaTeX."""
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    return {"text": _text, "md": _markdown, "csv": _csv, "latex": _latex}[style](table)


def _text(table: Table) -> str:
    cells = [["method", *table.columns]] + [[row.label, *(row.cell(c) for c in table.columns)] for row in table.rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    ]
    rule = "─" * len(lines[0])
    return "\n".join([*table.header, rule, lines[0], rule, *lines[1:], rule, *table.footer])


def _markdown(table: Table) -> str:
    def cell(row: Row, column: str) -> str:
        return f"**{row.cell(column)}**" if table.best(column) == row.method else row.cell(column)

    head = f"| method | {' | '.join(table.columns)} |"
    rule = "|---|" + "---:|" * len(table.columns)
    body = [f"| {row.label} | {' | '.join(cell(row, column) for column in table.columns)} |" for row in table.rows]
    above = "  \n".join(table.header)
    return "\n".join([above, "", head, rule, *body, "", *table.footer]).rstrip() + "\n"


def _csv(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "column", "mean", "sd", "seeds"])
    for row in table.rows:
        for column in table.columns:
            if values := row.values.get(column, []):
                deviation = f"{statistics.stdev(values):.4f}" if len(values) > 1 else ""
                writer.writerow([row.method, column, f"{statistics.fmean(values):.4f}", deviation, len(values)])
    return out.getvalue()


def _latex(table: Table) -> str:
    def cell(row: Row, column: str) -> str:
        text = row.cell(column).replace(" ± ", r" $\pm$ ").replace("–", "--")
        return rf"\textbf{{{text}}}" if table.best(column) == row.method else text

    def safe(text: str) -> str:
        for sign in "&%$#_{}":
            text = text.replace(sign, "\\" + sign)
        return text.replace("†", r"$\dagger$").replace("·", r"$\cdot$").replace("*", r"$^{*}$")

    lines = [
        *(f"% {line}" for line in table.header),
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\hline",
        " & ".join(["method", *(safe(column) for column in table.columns)]) + r" \\",
        r"\hline",
        *(" & ".join([safe(row.label), *(cell(row, c) for c in table.columns)]) + r" \\" for row in table.rows),
        r"\hline",
        r"\end{tabular}",
        *(f"% {line}" for line in table.footer),
    ]
    return "\n".join(lines) + "\n"
