"""`protolith experiment`: the papers' tables and figures, and experiments of one's own."""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protolith.cli.options import Data, Device, Json, Model, Set, Weights, Workers

if TYPE_CHECKING:
    from protolith.experiments.paper import Experiment, Reduction
    from protolith.experiments.table import Table


def experiment(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]", help="Such as i2pfl-table2, or a .toml file of the same form; without: list all."
        ),
    ] = None,
    data: Data = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Fewer communication rounds than the paper.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer local epochs.")] = None,
    width: Annotated[int | None, typer.Option(min=1, help="A narrower network.")] = None,
    model: Model = None,
    weights: Weights = None,
    methods: Annotated[str, typer.Option(help="Only these methods, separated by commas (others may be added).")] = "",
    task: Annotated[str, typer.Option(help="Only these tasks, separated by commas.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas. [default: as many as in the paper]")] = "",
    jobs: Annotated[int | None, typer.Option(help="Runs at the same time. [default: one a core]")] = None,
    workers: Workers = None,
    device: Device = None,
    out: Annotated[
        Path, typer.Option(help="Directory for the runs, which tables and figures share, and for what is made of them.")
    ] = Path("runs/papers"),
    format: Annotated[str, typer.Option(help="text, md, csv or latex.")] = "text",
    set_: Set = None,
    json: Json = False,
    dry: Annotated[bool, typer.Option("--dry-run", help="Only say what would be run.")] = False,
) -> None:
    """Run a table or figure of the papers, and print our numbers beside the paper's."""
    from protolith.cli.progress import print_json
    from protolith.cli.request import flags_of, model_settings, seeds_of, words
    from protolith.cli.result import name_failed
    from protolith.cli.sweep_progress import sweep_observer
    from protolith.experiments.paper import Reduction, get_experiment, plan, tables
    from protolith.experiments.render import render
    from protolith.experiments.sweep import run_sweep
    from protolith.extras import need
    from protolith.files import write_text

    if name is None:
        print(listing())
        return
    chosen = get_experiment(name)
    reduction = Reduction(
        rounds, epochs, width, words(methods), words(task), tuple(seeds_of(seeds)) if seeds else (),
        (*model_settings(model, weights), *(set_ or ())), flags_of(data=data, workers=workers, device=device),
    )  # fmt: skip
    with redirect_stdout(sys.stderr):  # whatever a plug-in prints: the output is the result alone
        planned = plan(chosen, reduction)
    if dry:
        print(describe(chosen, reduction, len(planned)))
        return
    if chosen.kind != "table":
        need(f"the figure {chosen.id}", "report")
    watcher = sweep_observer()
    try:
        outcomes = run_sweep([job.config for job in planned], out, watcher, jobs)
    finally:
        watcher.close()
    found = tables(chosen, reduction, planned, out)
    if json:
        print_json([as_json(table) for table in found])
    elif found:
        print(render(found, format), end="")
        write_text(out / f"{chosen.id}.md", render(found, "md"))
    if chosen.kind != "table":
        from protolith.report.paper_figures import draw_experiment  # takes a second to import

        for path in draw_experiment(chosen, reduction, planned, out):
            print(f"wrote {path}", file=sys.stderr)
    name_failed(outcomes)


def listing() -> str:
    """Every table and figure, one line each."""
    from protolith.experiments.paper import experiments

    lines = []
    for experiment in experiments().values():
        sets = ", ".join(dataset.name for dataset in experiment.datasets)
        lines.append(f"{experiment.id:<16} {experiment.paper}, {experiment.number}: {experiment.title}  [{sets}]")
    kinds = [experiment.kind == "table" for experiment in experiments().values()]
    return "\n".join([*lines, f"{len(kinds)} in all: {sum(kinds)} tables, {len(kinds) - sum(kinds)} figures"])


def describe(experiment: "Experiment", reduction: "Reduction", runs: int) -> str:
    """What an experiment would do."""
    from protolith.experiments.paper import reduced_by

    changes = reduced_by(experiment, reduction)
    lines = [
        f"{experiment.paper}, {experiment.number}: {experiment.title}",
        f"{runs} runs of {reduction.rounds or experiment.run['rounds']} rounds",
        f"REDUCED, not the paper's experiment: {', '.join(changes)}" if changes else "the paper's own size",
        *experiment.notes,
    ]
    return "\n".join(lines)


def as_json(table: "Table") -> dict[str, Any]:
    """A table for other programs."""
    rows = [{"name": row.label, "values": row.values, "paper": dict(row.printed)} for row in table.rows]
    return {"header": table.header, "columns": table.columns, "rows": rows, "notes": table.footer}
