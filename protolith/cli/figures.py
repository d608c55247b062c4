"""`protolith figure`."""

import sys
from pathlib import Path
from typing import Annotated

import typer


def figure(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories of runs.")],
    out: Annotated[Path, typer.Option(help="The figure; written as .pdf and as .png.")],
    kind: Annotated[
        str, typer.Option(help="curves (accuracy over rounds), domains (a panel for each), or tsne (of features).")
    ] = "curves",
    domains: Annotated[str | None, typer.Option(help="Only these domains, separated by commas.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Test images of each domain in a t-SNE.")] = 300,
    colour: Annotated[str, typer.Option(help="Colours of a t-SNE: class, domain or both.")] = "class",
) -> None:
    """Draw finished runs as a figure for a paper."""
    from protolith.experiments.table import find_runs
    from protolith.report.figures import figure_of

    runs = [run for directory in directories for run in find_runs(directory)]
    chosen = None if domains is None else [name.strip() for name in domains.split(",") if name.strip()]
    written = figure_of(runs, kind, out, domains=chosen, limit=limit, colour=colour)
    if unfinished := sum(run.finished is None for run in runs):
        print(f"{unfinished} run(s) not finished and left out", file=sys.stderr)
    print("\n".join(str(path) for path in written))
