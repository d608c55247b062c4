"""`protolith report` and `watch`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories of runs.")],
    out: Annotated[
        Path | None, typer.Option(help="The page, one file with everything in it. [default: report.html in DIR]")
    ] = None,
) -> None:
    """Explain runs on one page: results, mistakes, features, prototypes, cost. Open it from disk."""
    from protolith.report.page.build import write_report

    beside = directories[0] if len(directories) == 1 else Path()
    print(f"wrote {write_report(directories, out or beside / 'report.html')}")


def watch(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Runs, or directories of runs.")],
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The port. [default: 8750, or any that is free]")
    ] = None,
) -> None:
    """Show the report while runs train, in a browser on this machine; it gains a round when one is done."""
    from protolith.report.page.watch import open_server

    with open_server(directories, port) as server:
        try:
            print(f"open {server.address} in a browser on this machine; Ctrl-C ends it", flush=True)
            server.serve_forever()
        except KeyboardInterrupt:
            print("the watcher has ended; the runs go on", flush=True)
