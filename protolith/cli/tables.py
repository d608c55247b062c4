"""`protolith table`."""

from pathlib import Path
from typing import Annotated

import typer


def table(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a directory of runs.")],
    format: Annotated[str, typer.Option(help="text, md, csv or latex.")] = "text",
    columns: Annotated[
        str, typer.Option(help="accuracy (by site or domain), cross (LTA, ATA, GATA, GASA, CPRR) or cost.")
    ] = "accuracy",
    target: Annotated[
        float | None, typer.Option(help="With --columns cost: what it took to reach this mean accuracy.")
    ] = None,
) -> None:
    """Print finished runs: methods by sites or domains, or by other measures."""
    from protolith.experiments.render import render
    from protolith.experiments.table import build_tables, find_runs

    print(render(build_tables(find_runs(directory), columns, target), format).rstrip("\n"))
