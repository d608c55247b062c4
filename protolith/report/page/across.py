"""Part 4: the clients' models at home and abroad."""

from collections.abc import Sequence

from protolith.errors import UserError
from protolith.experiments.table import build_tables
from protolith.report.page.answer import html_table
from protolith.report.page.html import Html, join, select, tag
from protolith.report.page.plots import Figures, heat_map
from protolith.report.page.study import Setting, Study
from protolith.runs.run import Run

MEANING = (
    "LTA: every client's model on its own test set. ATA of a domain: models of that domain's clients on all other "
    "domains; GATA: the mean of it. GASA: models on their own domain. CPRR: 100 · GATA / GASA."
)


def across(study: Study, figures: Figures) -> Html:
    """Measures and matrices of the settings that have them."""
    parts = [_setting(setting, figures) for setting in study.settings if any(map(_has, setting.runs))]
    if not parts:
        words = (
            "Not measured in these runs: it is where clients' own models are tested (protocol local, or a method "
            "without a global model)."
        )
        return tag("p", words, class_="missing")
    return join(parts)


def _has(run: Run) -> bool:
    return run.finished is not None and run.finished.cross is not None


def _setting(setting: Setting, figures: Figures) -> Html:
    group = f"{setting.key}-across"
    held = {label: found for label, runs in setting.methods.items() if (found := [run for run in runs if _has(run)])}
    try:
        measures = build_tables([run for runs in held.values() for run in runs], "cross")[0]
        shown = html_table(measures, setting, f"The clients' own models at home and abroad: {setting.title}")
    except (UserError, LookupError):
        shown = tag("p", "The measures of these runs cannot be read.", class_="missing")
    return join(
        [
            tag("h3", setting.title),
            shown,
            tag("p", MEANING, class_="note"),
            select(group, "Method", list(held)),
            _matrix(setting, held, figures, group),
        ]
    )


def _matrix(setting: Setting, held: dict[str, list[Run]], figures: Figures, group: str) -> Html:
    views, most = [], 1
    for runs in held.values():
        rows, values = mean_matrix([run.finished.matrix for run in runs if run.finished])
        columns = rows if values and len(values[0]) == len(rows) else [str(i + 1) for i in range(len(values[0]))]
        most = max(most, len(rows))
        views.append(heat_map(values, columns, rows, limits=(0.0, 100.0), unit=" %"))
    label = "Accuracy of every client's model (row) on every client's test set (column), in per cent"
    height = min(900, 150 + max(14, 34 - most) * most)
    return join(
        [
            figures.add(f"{setting.key}-matrix", label, views, group=group, height=height),
            tag("p", f"{label}; means of the last rounds and of the seeds.", class_="note"),
        ]
    )


def mean_matrix(found: Sequence[dict[str, list[float]]]) -> tuple[list[str], list[list[float]]]:
    """The mean over seeds of matrices with the same clients; a client that one seed lacks is left out."""
    names = [name for name in found[0] if all(name in other for other in found)]
    return names, [
        [sum(column) / len(found) for column in zip(*(other[name] for other in found), strict=True)] for name in names
    ]
