"""`protolith deploy`: a real federation, from certificates to a check of every site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protolith.errors import UserError, unknown

if TYPE_CHECKING:
    from protolith.flower.plan import Deployment

deploy = typer.Typer(no_args_is_help=True)
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The deployment's directory.")]


@deploy.command("init")
def init(
    directory: Directory,
    sites: Annotated[str, typer.Option(help="The sites' names, separated by commas.")],
    host: Annotated[str, typer.Option(help="Name or address under which the sites reach the server.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65000, help="The server's port.")] = 9092,
    name: Annotated[str, typer.Option(help="The deployment's name. [default: the directory's]")] = "",
    wheel: Annotated[
        Path | None, typer.Option(help="Protolith's wheel, for each site. [default: that in dist/ of a clone]")
    ] = None,
) -> None:
    """Make certificates, keys, start scripts and instructions for a server and its sites."""
    from protolith.flower import layout
    from protolith.flower import wheel as wheels

    names = [site.strip() for site in sites.split(",") if site.strip()]
    given = wheels.checked(wheel) if wheel else wheels.found()
    made = layout.create(directory, names, host, port, name, given)
    _say(f"each site's directory holds {given.name}" if given else wheels.lacking())
    print(f"made {made.path}: read {made.path / 'README.md'} next")


@deploy.command("up")
def up(
    directory: Directory,
    data: Annotated[
        list[str] | None, typer.Option(metavar="SITE=FOLDER", help="A site's images; once for each site.")
    ] = None,
    server: Annotated[bool, typer.Option("--server", help="Start the server only.")] = False,
) -> None:
    """Start the server, and for a trial all sites on this machine."""
    from protolith.flower import processes
    from protolith.flower.plan import Deployment

    deployment = Deployment.open(directory)
    folders = _folders(deployment, data or [])
    if lacking := [site for site in deployment.plan.sites if site not in folders and not server]:
        raise UserError(f"--data {lacking[0]}=FOLDER is missing: say where the images of site {lacking[0]} are.")
    processes.start_server(deployment, _say)
    for site, folder in folders.items():
        processes.start_site(deployment, site, folder, _say)


@deploy.command("check")
def check(directory: Directory) -> None:
    """Check the server, its certificate, and for every site: registered, connected, images readable."""
    from protolith.flower.check import inspect
    from protolith.flower.plan import Deployment

    findings = inspect(Deployment.open(directory), _say)
    for finding in findings:
        print(f"{'ok  ' if finding.good else 'FAIL'}  {finding.what}")
    if not all(finding.good for finding in findings):
        raise typer.Exit(1)


@deploy.command("down")
def down(directory: Directory) -> None:
    """End what `up` started."""
    from protolith.flower import processes
    from protolith.flower.plan import Deployment

    processes.stop(Deployment.open(directory), _say)


def _folders(deployment: "Deployment", data: list[str]) -> dict[str, Path]:
    found = {}
    for item in data:
        site, equals, folder = item.partition("=")
        if not equals:
            raise UserError(f"--data {item}: it has the form SITE=FOLDER.")
        if site not in deployment.plan.sites:
            raise unknown("site in --data", site, deployment.plan.sites)
        found[site] = Path(folder)
    return found


def _say(text: str) -> None:
    typer.echo(text, err=True)
