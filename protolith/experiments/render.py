"""Tables as text, Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Sequence

from protolith.errors import unknown
from protolith.experiments.table import Table, TableRow

FORMATS = ("text", "md", "csv", "latex")


def render(tables: Sequence[Table], style: str) -> str:
    """Write tables out."""
    if style not in FORMATS:
        raise unknown("format", style, FORMATS)
    if style == "csv":
        return _csv(tables)
    write = {"text": _text, "md": _markdown, "latex": _latex}[style]
    return "\n".join(write(table) for table in tables)


def cell(row: TableRow, column: str) -> str:
    """Mean ± standard deviation, and in brackets what the paper prints and the difference."""
    mean, deviation = row.mean(column), row.deviation(column)
    ours = "–" if mean is None else f"{mean:.2f}"
    if deviation is not None:
        ours += f" ± {deviation:.2f}"
    if column not in row.printed:
        return ours
    difference = row.difference(column)
    return f"{ours} ({row.printed[column]:.2f}{'' if difference is None else f', {difference:+.2f}'})"


def _text(table: Table) -> str:
    cells = [["method", *table.columns]] + [[row.label, *(cell(row, c) for c in table.columns)] for row in table.rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = [
        "  ".join(
            [line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in cells
    ]
    rule = "─" * len(lines[0])
    return "\n".join([*table.header, rule, lines[0], rule, *lines[1:], rule, *table.footer]) + "\n"


def _markdown(table: Table) -> str:
    def marked(row: TableRow, column: str) -> str:
        text = cell(row, column)
        return {1: f"**{text}**", 2: f"<u>{text}</u>"}.get(table.rank(row, column), text)

    def safe(text: str) -> str:
        return text.replace("|", "\\|").replace("<", "&lt;")

    head = f"| method | {' | '.join(safe(column) for column in table.columns)} |"
    rule = "|---|" + "---:|" * len(table.columns)
    body = [f"| {safe(row.label)} | {' | '.join(marked(row, c) for c in table.columns)} |" for row in table.rows]
    above = "  \n".join(safe(line) for line in table.header)
    below = [f"{safe(line)}  " for line in table.footer]
    return "\n".join([above, "", head, rule, *body, "", *below]).rstrip() + "\n"


def _csv(tables: Sequence[Table]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "column", "mean", "sd", "seeds", "paper", "difference", "table"])
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                numbers = (
                    row.mean(column),
                    row.deviation(column),
                    len(row.values.get(column, [])),
                    row.printed.get(column),
                    row.difference(column),
                )
                if numbers[0] is not None or numbers[3] is not None:
                    writer.writerow([row.label, column, *map(_number, numbers), table.header[0]])
    return out.getvalue()


def _number(value: float | int | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"


# What LaTeX would not print as it is.
_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: "\\" + sign for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "†": r"$\dagger$",
    "‡": r"$\ddagger$",
    "·": r"$\cdot$",
    "×": r"$\times$",
    "→": r"$\rightarrow$",
    "*": r"$^{*}$",
    "–": "--",
    "τ": r"$\tau$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "²": r"$^2$",
}


def latex_safe(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(sign, sign) for sign in text)


def _latex(table: Table) -> str:
    def marked(row: TableRow, column: str) -> str:
        text = latex_safe(cell(row, column))
        return {1: rf"\textbf{{{text}}}", 2: rf"\underline{{{text}}}"}.get(table.rank(row, column), text)

    lines = [
        *(f"% {line}" for line in table.header),
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\hline",
        " & ".join(["method", *(latex_safe(column) for column in table.columns)]) + r" \\",
        r"\hline",
        *(" & ".join([latex_safe(row.label), *(marked(row, c) for c in table.columns)]) + r" \\" for row in table.rows),
        r"\hline",
        r"\end{tabular}",
        *(f"% {line}" for line in table.footer),
    ]
    return "\n".join(lines) + "\n"
