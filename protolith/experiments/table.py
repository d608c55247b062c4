"""Tables of finished runs: rows are methods, columns are domains and their mean, or other measures."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protolith.data.spec import all_tasks
from protolith.errors import UserError, unknown
from protolith.evaluation.accuracy import reached, spread, worst
from protolith.experiments.compare import group_runs
from protolith.models.backbones import is_backbone
from protolith.runs import attendance
from protolith.runs.config import RunConfig
from protolith.runs.result import Summary
from protolith.runs.run import Run

KINDS = {
    "accuracy": "accuracy on every domain, and the mean",
    "images": "accuracy by images: of all test images together, and the mean over domains",
    "cross": "the clients' own models at home and abroad: LTA, ATA by domain, GATA, GASA, CPRR",
    "cost": "worst site or domain, spread, megabytes and seconds a round, what it took to reach --target",
}

NEVER = ", never the best round"


@dataclass
class TableRow:
    """One method or variant: its values over the seeds by column, and what a paper prints."""

    label: str
    values: dict[str, list[float]] = field(default_factory=dict)
    printed: Mapping[str, float] = field(default_factory=dict)

    def add(self, values: Mapping[str, float | None]) -> None:
        """Take in one run."""
        for column, value in values.items():
            if value is not None:
                self.values.setdefault(column, []).append(value)

    def mean(self, column: str) -> float | None:
        """Mean over the seeds."""
        values = self.values.get(column, [])
        return statistics.fmean(values) if values else None

    def deviation(self, column: str) -> float | None:
        """Standard deviation over the seeds, where there are several."""
        values = self.values.get(column, [])
        return statistics.stdev(values) if len(values) > 1 else None

    def difference(self, column: str) -> float | None:
        """How far the mean is above what the paper prints."""
        mean = self.mean(column)
        return mean - self.printed[column] if mean is not None and column in self.printed else None


@dataclass
class Table:
    """Rows under a header that says how they came about."""

    header: list[str]
    columns: list[str]
    rows: list[TableRow]
    footer: list[str]
    lower_is_better: frozenset[str] = frozenset()

    def rank(self, row: TableRow, column: str) -> int:
        """1 for the best row of a column, 2 for the second, 0 for all others and where there is nothing to compare."""
        means = [mean for other in self.rows if (mean := other.mean(column)) is not None]
        mine = row.mean(column)
        if mine is None or len(means) < 2:
            return 0
        ahead = sum(mean < mine if column in self.lower_is_better else mean > mine for mean in means)
        return ahead + 1 if ahead < 2 else 0


def find_runs(path: Path) -> list[Run]:
    """The run in a directory, or the runs below it."""
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    configs = [path / "config.toml"] if (path / "config.toml").is_file() else sorted(path.glob("*/config.toml"))
    if not configs:
        raise UserError(f"{path} holds no run: there is no config.toml in it or one level below.")
    return [Run.open(config.parent) for config in configs]


def build_tables(runs: Sequence[Run], kind: str = "accuracy", target: float | None = None) -> list[Table]:
    """Gather finished runs: one table for each task and protocol."""
    _refuse_unknown(kind, runs)
    tables = []
    for group in group_runs(runs).values():
        table = Table([], [], [], [])
        done: list[tuple[Run, Summary]] = []
        for label, members in group.items():
            finished = [(run, summary) for run in members if (summary := run.finished)]
            if finished:
                table.rows.append(_row(label, finished, kind, target))
                done += finished
        if done:
            table.columns = columns_of(table.rows)
            table.header = header([run for run, _ in done], [summary for _, summary in done])
            table.footer = footer([s for _, s in done], sum(map(len, group.values())) - len(done))
            table.lower_is_better = LOWER_IS_BETTER
            tables.append(table)
    if not tables:
        raise UserError("no run is finished yet: a table needs at least one (see `protolith resume`).")
    if not any(table.columns for table in tables):
        raise UserError(f"--columns {kind}: these runs have no such values ({KINDS[kind]}).")
    return [table for table in tables if table.columns]


def _refuse_unknown(kind: str, runs: Sequence[Run]) -> None:
    """Refuse a word that is no kind of columns, and no measure that one of the runs has."""
    if kind not in KINDS:
        measured = {name for run in runs if run.finished for name in run.finished.measures}
        if kind not in measured:
            raise unknown("kind in --columns", kind, [*KINDS, *sorted(measured)])


def _row(label: str, finished: list[tuple[Run, Summary]], kind: str, target: float | None) -> TableRow:
    mark = "" if finished[0][1].is_global else " †"
    row = TableRow(label + mark + " ‡" * any(summary.absent for _, summary in finished))
    for run, summary in finished:
        row.add(values_of(run, summary, kind, target))
        for site in summary.absent if kind == "accuracy" else ():
            row.values.setdefault(site, [])  # its column stays, with no number in it
    for column in ("rounds to target", "MB to target"):  # a mean over the seeds that got there would flatter
        if len(row.values.get(column, [])) < len(finished):
            row.values.pop(column, None)
    return row


def columns_of(rows: Sequence[TableRow]) -> list[str]:
    """All columns in the order in which they appear, the mean last."""
    found = list(dict.fromkeys(column for row in rows for column in row.values))
    return [column for column in found if column != "mean"] + [column for column in found if column == "mean"]


def values_of(run: Run, summary: Summary, kind: str, target: float | None = None) -> Mapping[str, float | None]:
    """What a finished run contributes to a table."""
    if kind == "accuracy":
        return {**summary.accuracy, "mean": summary.mean}
    if kind == "images":
        return {"by images": summary.by_images, "mean": summary.mean} if summary.by_images else {}
    if kind == "cross":
        return cross_values(summary)
    if kind == "cost":
        return _cost(run, summary, target)
    if (found := summary.measures.get(kind)) is None:
        return {}
    values = {**found.domains, "by images": found.by_images, "mean": found.mean}
    return {name: value for name, value in values.items() if value == value}  # where it is a number


def cross_values(summary: Summary) -> dict[str, float | None]:
    """FedCode's measures by the names of its tables."""
    if (cross := summary.cross) is None:
        return {}
    ata = {f"ATA {domain}": value for domain, value in cross.ata.items()}
    return {"LTA": cross.lta, **ata, "GATA": cross.gata, "GASA": cross.gasa, "CPRR": cross.cprr}


LOWER_IS_BETTER = frozenset({"spread", "MB up", "MB down", "s a round", "rounds to target", "MB to target"})


def _cost(run: Run, summary: Summary, target: float | None) -> dict[str, float | None]:
    rounds = summary.rounds
    values: dict[str, float | None] = {
        "mean": summary.mean,
        f"worst {_place(summary.task)}": worst(summary.accuracy)[1],
        "spread": spread(summary.accuracy),
        "MB up": summary.bytes_up / rounds / 1e6,
        "MB down": summary.bytes_down / rounds / 1e6,
        "s a round": summary.seconds / rounds,
    }
    if target is not None:
        round_, sent = reached(attendance.with_whole_means(run.rounds), target) or (None, None)
        values |= {"rounds to target": round_, "MB to target": None if sent is None else sent / 1e6}
    return values


def _place(task: str) -> str:
    """What the columns of a task are called: the papers' have domains, one's own have sites."""
    return "domain" if task in all_tasks() else "site"


def header(runs: Sequence[Run], summaries: Sequence[Summary]) -> list[str]:
    """What was run and by which rule the numbers were taken."""
    configs = [run.config for run in runs]

    def all_of(values: Sequence[object]) -> str:
        return ", ".join(str(value) for value in dict.fromkeys(values))

    lines = [
        f"task {all_of([Path(c.task).name for c in configs])} · "
        f"protocol {all_of([c.protocol.name for c in configs])} · "
        f"{all_of([c.rounds for c in configs])} rounds of {all_of([c.training.epochs for c in configs])} epochs · "
        f"{_networks(configs)} · "
        f"seeds {all_of([c.seed for c in configs])}",
        f"accuracy in per cent, {all_of([s.rule + NEVER * ('mean of' in s.rule) for s in summaries])}",
    ]
    if any(c.attack.said() for c in configs):
        lines.append(all_of([c.attack.said() or "no attack" for c in configs]))
    if any(c.robust != "mean" for c in configs):
        lines.append(f"robust aggregation: {all_of([_robust(c) for c in configs])}")
    return lines


def _networks(configs: Sequence[RunConfig]) -> str:
    """The networks; a pretrained one has no width, but a part that is trained."""
    own = [c.model for c in configs if not is_backbone(c.model.name)]
    widths = ", ".join(dict.fromkeys(str(model.width) for model in own))
    names = [", ".join(dict.fromkeys(model.name for model in own)) + f", width {widths}"] if own else []
    tuned = [f"{c.model.name}, {c.model.tune} trained" for c in configs if is_backbone(c.model.name)]
    return "; ".join([*names, *dict.fromkeys(tuned)])


def _robust(config: RunConfig) -> str:
    return config.robust if config.robust == "mean" else f"{config.robust} for {config.robust_share:.0%} bad clients"


def footer(summaries: Sequence[Summary], unfinished: int = 0) -> list[str]:
    """What the reader of the numbers must know."""
    notes = list(dict.fromkeys(note for summary in summaries for note in summary.notes))
    own = {s.tested.words: _place(s.task) for s in summaries if not s.is_global}
    notes += [f"† of {kind}, each on its own {place}" for kind, place in own.items()]
    notes += [f"‡ {s.method}, seed {s.seed}: {said}" for s in summaries for said in attendance.sentences(s)]
    if differing := _versions(summaries):
        notes.append(f"runs of different code: {'; '.join(differing)}")
    if unfinished:
        notes.append(f"{unfinished} run(s) not finished and left out")
    return notes


def _versions(summaries: Sequence[Summary]) -> list[str]:
    """The package and the plug-ins of which the runs had several versions; a plug-in's version is its content."""
    found: dict[str, dict[str, None]] = {}
    for summary in summaries:
        version = summary.versions.get("protolith")
        for name, held in {"protolith": version, **summary.plugins}.items():
            if held is not None:
                found.setdefault(name, {})[held] = None
    return [f"{name} {' and '.join(versions)}" for name, versions in found.items() if len(versions) > 1]
