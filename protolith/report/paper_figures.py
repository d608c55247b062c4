"""The figures of the papers, drawn from the runs of an experiment."""

from collections.abc import Sequence
from pathlib import Path

from protolith.experiments.paper import Experiment, Planned, Reduction, at_rounds, reduced_by, run_of, tables
from protolith.experiments.table import TableRow
from protolith.report import figures
from protolith.report.features import Features, client_models, collect_features
from protolith.runs.run import Run

POINTS = 300  # test images of a domain in a t-SNE


def draw_experiment(experiment: Experiment, reduction: Reduction, planned: Sequence[Planned], out: Path) -> list[Path]:
    """Draw the figure of an experiment from its finished runs; a table has none."""
    path = out / f"{experiment.id}.pdf"
    done = [(job, run) for job in planned if (run := run_of(job, out)).finished]
    if not done or experiment.kind == "table":
        return []
    if experiment.kind == "tsne":
        return figures.tsne(_grid(experiment, done), path)
    if experiment.kind == "curves":
        return figures.curves(_runs(experiment, reduction, done), path)
    rows = dict(_rows(experiment, reduction, planned, out))
    return _study(experiment, rows, path) if experiment.kind == "study" else _bars(rows, path)


def _panel(experiment: Experiment, reduction: Reduction, dataset: str) -> str:
    return f"{dataset} (reduced)" if reduced_by(experiment, reduction) else dataset


def _runs(
    experiment: Experiment, reduction: Reduction, done: Sequence[tuple[Planned, Run]]
) -> dict[str, dict[str, list[Run]]]:
    groups: dict[str, dict[str, list[Run]]] = {}
    for job, run in done:
        panel = groups.setdefault(_panel(experiment, reduction, job.dataset), {})
        panel.setdefault(job.variant.name, []).append(run)
    return groups


def _rows(
    experiment: Experiment, reduction: Reduction, planned: Sequence[Planned], out: Path
) -> list[tuple[str, list[TableRow]]]:
    names = dict.fromkeys(job.dataset for job in planned)
    found = []
    for name in names:
        for table in tables(experiment, reduction, [job for job in planned if job.dataset == name], out):
            found.append((_panel(experiment, reduction, name), table.rows))
    return found


def _study(experiment: Experiment, found: dict[str, list[TableRow]], path: Path) -> list[Path]:
    """One panel for each data set and option; the measures are the lines."""
    variants = {variant.name: variant for variant in experiment.rows}
    columns = ["mean"] if experiment.metric == "accuracy" else ["LTA", "GASA", "GATA"]
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    base: dict[str, float] = {}
    for dataset, rows in found.items():
        for row in rows:
            variant = variants[row.label]
            if variant.base:
                continue
            panel = panels.setdefault(f"{dataset}: {variant.study}", {})
            for column in columns:
                if row.values.get(column):
                    panel.setdefault(column, {})[variant.x] = row.values[column]
        for row in rows:
            mean = row.mean("mean")
            if variants[row.label].base and mean is not None:
                base |= {panel: mean for panel in panels if panel.startswith(f"{dataset}: ")}
    return figures.study(panels, path, "", base=base)


def _bars(found: dict[str, list[TableRow]], path: Path) -> list[Path]:
    """One panel for each data set: the variants side by side, domain by domain or measure by measure."""
    return figures.bars({dataset: {row.label: row.values for row in rows} for dataset, rows in found.items()}, path)


def _grid(experiment: Experiment, done: Sequence[tuple[Planned, Run]]) -> dict[str, dict[str, Features]]:
    """Rows and columns of a t-SNE: domains × methods, domains × rounds, or methods × source domains."""
    first = {job.variant.name: (job, run) for job, run in reversed(done)}
    grid: dict[str, dict[str, Features]] = {}
    for name, (job, run) in reversed(first.items()):
        if experiment.client_models:
            grid[name] = {
                client.rsplit("-", 1)[0]: collect_features(run, file, limit=POINTS)
                for client, file in client_models(run).items()
            }
            continue
        columns: dict[str, Path | None] = {name: None}
        if experiment.at:
            kept = at_rounds(experiment, job.config.rounds)
            columns = {f"{name}, round {at}": run.path / "models" / f"round-{at:06d}.safetensors" for at in kept}
        for column, file in columns.items():
            features = collect_features(run, file, limit=POINTS)
            for domain in _shown(experiment, features):
                grid.setdefault(domain, {})[column] = features.only([domain])
    return grid


def _shown(experiment: Experiment, features: Features) -> list[str]:
    return [figures.match_domain(name, features.domain_names) for name in experiment.domains]
