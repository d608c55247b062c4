"""Part 1: the table, how it came about, and how to repeat it."""

from collections.abc import Sequence

from protolith.data.protocols import PROTOCOLS
from protolith.errors import UserError
from protolith.experiments.render import cell
from protolith.experiments.table import Table, TableRow, build_tables, columns_of
from protolith.report.page.html import Html, join, table, tag
from protolith.report.page.places import meanings
from protolith.report.page.plots import Figures, swatch
from protolith.report.page.repeat import commands
from protolith.report.page.study import Setting, Study
from protolith.runs.attendance import lacking, sites_of
from protolith.runs.run import Run


def answer(study: Study, figures: Figures) -> Html:
    """The table of each setting."""
    if not study.settings:
        return tag("p", "There is no run here yet.", class_="missing")
    return join(_setting(setting, len(study.settings) > 1) for setting in study.settings)


def _setting(setting: Setting, named: bool) -> Html:
    found = accuracy_table(setting)
    protocol = next(setting.runs).config.protocol.name
    configs = [run.config for run in setting.runs]
    return join(
        [
            tag("h3", setting.title) if named else "",
            tag("p", f"Protocol {protocol}: {PROTOCOLS[protocol]}.", class_="note"),
            *(tag("p", _sentence(line), class_="note") for line in found.header),
            html_table(found, setting, f"Accuracy in per cent by domain: {setting.title}"),
            tag(
                "p",
                tag("b", "Bold"),
                " is the best of a column, ",
                tag("u", "underlined"),
                " the second.",
                class_="note",
            )
            if len(found.rows) > 1
            else "",
            *(tag("p", _sentence(line), class_="note") for line in found.footer),
            tag("p", "To repeat it:"),
            tag("pre", tag("code", "\n".join(commands(configs))), tabindex="0"),
            tag("p", said, class_="note") if (said := meanings(configs)) else "",
        ]
    )


def _sentence(line: str) -> str:
    return f"{line[:1].upper()}{line[1:]}{'' if line.endswith('.') else '.'}"


def accuracy_table(setting: Setting) -> Table:
    """What is finished, and below it how far the rest is."""
    finished = [run for run in setting.runs if run.finished]
    try:
        found = build_tables(finished)[0] if finished else Table([], [], [], [])
    except (UserError, LookupError):
        found = Table([], [], [], ["the summaries of these runs cannot be read"])
    for label, runs in setting.methods.items():
        if not any(run.finished for run in runs) and (row := _so_far(label, runs)):
            found.rows.append(row)
    if open_ := sum(run.finished is None for run in setting.runs):
        found.footer = [line for line in found.footer if "not finished" not in line]
        found.footer.append(f"{open_} run(s) not finished: a row “so far” is the last tested round, not a result")
    found.columns = columns_of(found.rows)
    return found


def _so_far(label: str, runs: Sequence[Run]) -> TableRow | None:
    """The last tested round of runs that are under way."""
    row, rounds = TableRow(label), []
    for run in runs:
        tested = [line for line in run.rounds if line.tested]
        if tested:
            row.add({**tested[-1].accuracy, "mean": tested[-1].mean})
            away = lacking(tested[-1], sites_of(run.rounds))
            without = f" without {' and '.join(away)}" if away else ""
            rounds.append(f"{tested[-1].round} of {run.config.rounds}{without}")
    row.label = f"{label}, so far (round {', '.join(dict.fromkeys(rounds))})"
    return row if rounds else None


def html_table(found: Table, setting: Setting, caption: str) -> Html:
    """A table with the best of each column bold, the second underlined, and every method's colour."""
    if not found.rows:
        return tag("p", "No round has been tested yet.", class_="missing")
    rows = [
        [_name(row.label, setting), *(_marked(found, row, column) for column in found.columns)] for row in found.rows
    ]
    return table(["method", *found.columns], rows, caption)


def _name(label: str, setting: Setting) -> Html:
    method = next((name for name in sorted(setting.looks, key=len, reverse=True) if label.startswith(name)), None)
    return join([swatch(setting.looks[method].colour) if method else "", label])


def _marked(found: Table, row: TableRow, column: str) -> Html:
    mark = {1: "b", 2: "u"}.get(found.rank(row, column), "span")
    return tag(mark, cell(row, column))
