"""`protolith table`."""

from pathlib import Path
from typing import Annotated

import typer

from protolith.experiments.table import build_table, find_runs, render


def table(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run, or a directory of runs.")],
    format: Annotated[str, typer.Option(help="text, md, csv or latex.")] = "text",
) -> None:
    """Print the accuracy of finished runs: methods by domains."""
    print(render(build_table(find_runs(directory)), format).rstrip("\n"))
