"""The papers' tables and figures as experiments: what to run, and our numbers beside theirs."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from protolith.data.protocols import plain_name
from protolith.data.spec import all_tasks
from protolith.errors import UserError, unknown
from protolith.experiments.printed import printed_table
from protolith.experiments.sweep import job_path
from protolith.experiments.table import Table, TableRow, columns_of, footer, header, values_of
from protolith.methods.registry import get_method
from protolith.runs.config import RunConfig, merge, parse_set, read_toml, resolve, validated
from protolith.runs.defaults import Tree
from protolith.runs.result import Summary
from protolith.runs.run import Run

PAPERS = ("FPL", "I2PFL", "FedAPC", "FedCode")
# Which columns each metric shows, in the papers' order; None: whatever the runs have.
METRICS: dict[str, tuple[str, ...] | None] = {
    "accuracy": None,
    "lta": ("LTA",),
    "ata": ("ATA", "GATA", "GASA", "CPRR"),
    "cross": ("LTA", "GASA", "GATA", "CPRR"),
}


class Variant(BaseModel):
    """A row of a table, a line or a point of a figure: a method with some options."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="as the paper prints it")
    method: str
    params: dict[str, Any] = {}
    run: dict[str, Any] = Field({}, description="other settings of its runs")
    study: str = Field("", description="what is varied, for a figure of a hyper-parameter")
    x: str = Field("", description="its value")
    base: bool = Field(False, description="drawn as a base line")


class Dataset(BaseModel):
    """One of the data sets of an experiment, and how it is run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="as the paper prints it")
    run: dict[str, Any]
    leave_out: bool = Field(False, description="one run for each domain, which is then the unseen one")


class Experiment(BaseModel):
    """A table or figure of a paper."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    paper: str
    number: str
    title: str
    kind: Literal["table", "curves", "study", "bars", "tsne"]
    metric: Literal["accuracy", "lta", "ata", "cross"] = "accuracy"
    printed: str = Field("", description="the paper's numbers")
    seeds: list[int]
    notes: list[str]
    datasets: list[Dataset]
    rows: list[Variant]
    run: dict[str, Any]
    domains: list[str] = Field([], description="whose test images a t-SNE shows; all of them if empty")
    at: list[int] = Field([], description="rounds after which a t-SNE looks at the global model")
    client_models: bool = Field(False, description="a t-SNE of clients' models, one for each domain")


@dataclass(frozen=True)
class Reduction:
    """What the user wants smaller, or otherwise, than in the paper."""

    rounds: int | None = None
    epochs: int | None = None
    width: int | None = None
    methods: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: tuple[str, ...] = ()
    place: Tree = field(default_factory=dict)  # where it runs: data, workers, device; changes no result


@dataclass(frozen=True)
class Planned:
    """One run of an experiment."""

    dataset: str
    variant: Variant
    config: RunConfig


@cache
def experiments() -> dict[str, Experiment]:
    """All of them, in the order of the papers."""
    folder = files("protolith.experiments") / "papers"
    found = []
    for item in folder.iterdir():
        if item.name.endswith(".toml"):
            name = item.name.removesuffix(".toml")
            found.append(Experiment(id=name, **tomllib.loads(item.read_text(encoding="utf-8"))))
    found.sort(key=lambda e: (PAPERS.index(e.paper), "-fig" in e.id, int(re.sub(r".*\D", "", e.id))))
    return {experiment.id: experiment for experiment in found}


def get_experiment(name: str) -> Experiment:
    """Find a table or figure by its name, or read an experiment of one's own from a file of the same form."""
    if name.endswith(".toml"):
        return validated(Experiment, {"id": Path(name).stem, **read_toml(Path(name))}, f"{name}: ")
    if name not in experiments():
        raise unknown("table or figure", name, experiments(), "`protolith experiment` lists all")
    return experiments()[name]


def plan(experiment: Experiment, reduction: Reduction) -> list[Planned]:
    """Resolve every run of an experiment, seed by seed."""
    variants = _chosen(experiment, reduction)
    planned = []
    for seed in reduction.seeds or experiment.seeds:
        for dataset in _datasets(experiment, reduction):
            for unseen in _left_out(dataset):
                for variant in variants:
                    layers = _layers(experiment, dataset, variant, reduction, seed, unseen)
                    planned.append(Planned(dataset.name, variant, resolve(layers)))
    return planned


def _chosen(experiment: Experiment, reduction: Reduction) -> list[Variant]:
    here = list(dict.fromkeys(variant.method for variant in experiment.rows))
    methods = [get_method(name).name for name in reduction.methods]
    extra = [name for name in methods if name not in here]
    if extra and experiment.kind not in ("table", "curves", "tsne"):
        raise UserError(f"--methods {extra[0]}: {experiment.id} has {', '.join(here)} only.")
    rows = [variant for variant in experiment.rows if not methods or variant.method in methods]
    return rows + [Variant(name=get_method(name).title, method=name) for name in extra]


def _datasets(experiment: Experiment, reduction: Reduction) -> list[Dataset]:
    tasks = [str(dataset.run["task"]) for dataset in experiment.datasets]
    for task in reduction.tasks:
        if task not in tasks:
            raise unknown(f"task in {experiment.id}", task, tasks)
    return [d for d in experiment.datasets if not reduction.tasks or d.run["task"] in reduction.tasks]


def _left_out(dataset: Dataset) -> tuple[str, ...]:
    return tuple(plain_name(name) for name in all_tasks()[dataset.run["task"]].domains) if dataset.leave_out else ("",)


def _layers(
    experiment: Experiment, dataset: Dataset, variant: Variant, reduction: Reduction, seed: int, unseen: str
) -> list[Tree]:
    given: Tree = merge(reduction.place, variant.run)
    given = merge(given, {"method": variant.method, "params": variant.params, "seed": seed})
    if unseen:
        given = merge(given, {"protocol": {"unseen": unseen}})
    if reduction.rounds:
        given["rounds"] = reduction.rounds
    if reduction.epochs:
        given["training"] = {"epochs": reduction.epochs}
    if reduction.width:
        given["model"] = {"width": reduction.width}
    rounds = reduction.rounds or int(experiment.run["rounds"])
    if experiment.at:
        given["keep_models"] = at_rounds(experiment, rounds)
    return [experiment.run, dataset.run, given, parse_set(reduction.settings, variant.method)]


def at_rounds(experiment: Experiment, rounds: int) -> list[int]:
    """The rounds at which a figure looks, moved together when there are fewer rounds than in the paper."""
    return sorted({max(1, round(at * rounds / int(experiment.run["rounds"]))) for at in experiment.at})


def reduced_by(experiment: Experiment, reduction: Reduction) -> list[str]:
    """In what an experiment is smaller than, or other than, the paper's."""
    run = experiment.run
    wanted = [
        ("rounds", reduction.rounds, run["rounds"]),
        ("local epochs", reduction.epochs, run["training"]["epochs"]),
        ("width", reduction.width, run["model"]["width"]),
        ("seeds", len(reduction.seeds) or None, len(experiment.seeds)),
        ("methods", len(_chosen(experiment, reduction)) if reduction.methods else None, len(experiment.rows)),
    ]
    found = [f"{what} {ours} instead of {theirs}" for what, ours, theirs in wanted if ours not in (None, theirs)]
    return found + list(reduction.settings)


def tables(experiment: Experiment, reduction: Reduction, planned: Sequence[Planned], out: Path) -> list[Table]:
    """Our numbers beside the paper's: one table for each data set that has a finished run."""
    found = []
    for dataset in dict.fromkeys(job.dataset for job in planned):
        jobs = [job for job in planned if job.dataset == dataset]
        done = [(job, run, summary) for job in jobs if (summary := (run := run_of(job, out)).finished)]
        if done:
            found.append(_table(experiment, reduction, dataset, done, len(jobs)))
    if found:
        found[-1].footer += experiment.notes
    return found


def run_of(job: Planned, out: Path) -> Run:
    """The run of a part of an experiment, wherever it stands."""
    return Run(job_path(job.config, out))


Done = list[tuple[Planned, Run, Summary]]


def _table(experiment: Experiment, reduction: Reduction, dataset: str, done: Done, asked: int) -> Table:
    rows = [_row(experiment, name, done) for name in dict.fromkeys(job.variant.name for job, _, _ in done)]
    theirs = printed_table(experiment.printed).get(dataset, {}) if experiment.printed else {}
    columns = columns_of(rows)
    for row in rows:
        values = theirs.get(row.label, {})
        row.printed = {column: values[plain] for column in columns if (plain := plain_name(column)) in values}
    first = [f"{experiment.paper}, {experiment.number} · {dataset} · {experiment.title}"]
    if changes := reduced_by(experiment, reduction):
        first.append(f"REDUCED, not the paper's experiment: {', '.join(changes)}")
    if any(row.printed for row in rows):
        first.append("in brackets: the paper's value, and ours minus the paper's")
    summaries = [summary for _, _, summary in done]
    notes = footer(summaries, asked - len(done))
    return Table([*first, *header([run for _, run, _ in done], summaries)], columns, rows, notes)


def _row(experiment: Experiment, name: str, done: Done) -> TableRow:
    row = TableRow(name)
    mine = [(job, run, summary) for job, run, summary in done if job.variant.name == name]
    for seed in dict.fromkeys(job.config.seed for job, _, _ in mine):
        row.add(_values(experiment, [(run, summary) for job, run, summary in mine if job.config.seed == seed]))
    return row


def _values(experiment: Experiment, runs: Sequence[tuple[Run, Summary]]) -> Mapping[str, float | None]:
    """The columns of one seed: of its only run, or of one run for each unseen domain."""
    wanted = METRICS[experiment.metric]
    if wanted is not None:
        (run, summary), *_ = runs
        values = values_of(run, summary, "cross")
        ordered = [name for want in wanted for name in values if name.split(" ")[0] == want]
        return {name: values[name] for name in ordered}
    accuracy: dict[str, float] = {}
    for _, summary in runs:
        accuracy |= summary.accuracy
    return {**accuracy, "mean": sum(accuracy.values()) / len(accuracy)}
