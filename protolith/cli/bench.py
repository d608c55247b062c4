"""`protolith bench`."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from protolith.errors import UserError


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer widths, clients and repeats: a few minutes.")] = False,
    data: Annotated[
        str, typer.Option(help="Directory with Office-Caltech10; without it the embedded task is used.")
    ] = "",
    only: Annotated[str, typer.Option(help="Only these parts, separated by commas.")] = "",
    out: Annotated[Path, typer.Option(help="Where the figures go.")] = Path("bench.json"),
    against: Annotated[Path | None, typer.Option(help="Figures of an earlier run: say what got worse.")] = None,
) -> None:
    """Measure speed and memory against a plain loop and the machine's limit, in one run."""
    from protolith.bench.run import compare, run_bench, write

    if data and not Path(data).is_dir():
        raise UserError(f"--data {data}: the directory does not exist.")
    before = None
    if against is not None:
        if not against.is_file():
            raise UserError(f"--against {against}: the file does not exist.")
        before = json.loads(against.read_text())
    chosen = [word.strip() for word in only.split(",") if word.strip()]
    where = str(Path(data).resolve()) if data else ""
    found = run_bench(quick, where, chosen, partial(print, flush=True), lambda so_far: write(so_far, out))
    print(f"wrote {out}")
    if before is not None:
        worse = compare(found, before)
        print("\n".join(worse) if worse else "nothing got worse")
