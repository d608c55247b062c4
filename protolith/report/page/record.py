"""Part 9: configuration, versions, and everything that went other than planned."""

from collections import Counter
from collections.abc import Iterator

from protolith.experiments.sweep import state
from protolith.report.page.html import Html, join, table, tag
from protolith.report.page.places import shown
from protolith.report.page.plots import Figures
from protolith.report.page.study import Setting, Study
from protolith.runs.config import to_toml
from protolith.runs.run import Run

EVENTS = 30  # rejected uploads that are listed
FILES = 30  # configurations that are shown whole


def record(study: Study, figures: Figures) -> Html:
    """Events, settings and versions."""
    runs = list(study.runs)
    return join(
        [
            tag("h3", "Events"),
            _list([*_failed(study), *_unfinished(runs), *_without(runs), *_uploads(runs)]),
            tag("h3", "Settings"),
            *(_settings(setting) for setting in study.settings),
            tag("h3", "Versions"),
            _versions(runs),
            tag("h3", "Configurations"),
            *(_file(run) for run in runs[:FILES]),
            tag("p", f"{len(runs) - FILES} more are in the run directories.") if len(runs) > FILES else "",
        ]
    )


def _list(items: list[str]) -> Html:
    if not items:
        return tag("p", "Nothing out of the ordinary: no failed job, no rejected upload, no client that dropped out.")
    return tag("ul", *(tag("li", item) for item in items), class_="events")


def _failed(study: Study) -> Iterator[str]:
    for name, sentence in study.failed.items():
        yield f"Job {name} failed: {sentence}"


def _unfinished(runs: list[Run]) -> Iterator[str]:
    for run in runs:
        if run.finished is None:
            how = "is under way" if state(run.path) == "running" else "is not finished"
            yield f"Run {run.path.name} {how}: {len(run.rounds)} of {run.config.rounds} rounds."


def _without(runs: list[Run]) -> Iterator[str]:
    for run in runs:
        if run.finished and run.tests is None:
            why = "saved no predictions" if run.config.diagnostics else "was run with diagnostics off"
            yield f"Run {run.path.name} {why}: mistakes and features of it are missing here."


def _uploads(runs: list[Run]) -> Iterator[str]:
    rejected = [
        f"Run {run.path.name}, round {line.round}: {event.client}'s upload was rejected: {event.reason}"
        for run in runs
        for line in run.rounds
        for event in line.rejected
    ]
    yield from rejected[:EVENTS]
    if len(rejected) > EVENTS:
        yield f"{len(rejected) - EVENTS} more rejected uploads."
    for run in runs:
        if attack := run.config.attack.said():
            yield f"Run {run.path.name}: {attack}."
        if out := {name: line.round for line in reversed(run.rounds) for name in line.sitting_out}:
            words = ", ".join(f"{name} from round {first} on" for name, first in sorted(out.items())[:8])
            yield f"Run {run.path.name}: clients sat out after rejected uploads ({words})."
        flagged = Counter(f"{e.client}'s {e.what}" for line in run.rounds for e in line.flagged)
        if flagged:
            words = ", ".join(f"{name} {count} times" for name, count in flagged.most_common(8))
            yield f"Run {run.path.name}: norms far beyond the others' ({words})."
        dropped = Counter(name for line in run.rounds for name in line.dropped)
        if dropped:
            words = ", ".join(f"{name} {count} times" for name, count in dropped.most_common(8))
            yield f"Run {run.path.name}: clients dropped out of rounds ({words})."


def _settings(setting: Setting) -> Html:
    """What all runs share, and what sets them apart."""
    flat = {run.path.name: dict(_flat(shown(run.config).model_dump(mode="json"))) for run in setting.runs}
    keys = list(dict.fromkeys(key for found in flat.values() for key in found))
    rows = []
    for key in keys:
        values = list(dict.fromkeys(_written(found[key]) for found in flat.values() if key in found))
        rows.append([key, " · ".join(values[:8]) + (" · …" if len(values) > 8 else "")])
    return tag(
        "details", tag("summary", setting.title), table(["setting", "value"], rows, setting.title, numbers=False)
    )


def _flat(tree: dict[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _written(value: object) -> str:
    return {"": "(none)", "[]": "(none)", "{}": "(none)", "True": "yes", "False": "no"}.get(str(value), str(value))


def _versions(runs: list[Run]) -> Html:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for name, version in (run.finished.versions if run.finished else {}).items():
            found.setdefault(name, {})[version] = None
    if not found:
        return tag("p", "Written when a run is finished.", class_="missing")
    return table(["what", "version"], [[name, ", ".join(held)] for name, held in found.items()], "Versions", False)


def _file(run: Run) -> Html:
    return tag(
        "details", tag("summary", run.path.name), tag("pre", tag("code", to_toml(shown(run.config))), tabindex="0")
    )
