"""`protolith methods`, `tasks`, `presets` and `data`: what there is."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protolith.cli.options import Plugin
from protolith.doors import any_installed
from protolith.errors import NothingRead
from protolith.experiments.presets import describe_preset, preset_names
from protolith.methods import facts

if TYPE_CHECKING:
    from protolith.data.domain import Task
    from protolith.data.spec import TaskSpec
    from protolith.methods.registry import Method

data = typer.Typer(no_args_is_help=True)
Directory = Annotated[Path | None, typer.Option("--data", help="Directory that holds the task's data.")]
Size = Annotated[int | None, typer.Option(help="Height and width of the images. [default: the task's]")]


def methods(name: Annotated[str | None, typer.Argument(help="Explain this one.")] = None) -> None:
    """List the methods, or explain one."""
    if name is None and not any_installed("methods"):
        _list(facts.built_in().values())
        return
    from protolith.methods.registry import all_methods, get_method

    print(explain(get_method(name))) if name is not None else _list(all_methods().values())


def _list(methods: "Iterable[facts.Facts | Method]") -> None:
    for method in methods:
        authors, *rest = method.paper.split(", ")
        print(f"{method.name:<18} {method.idea}  [{', '.join([authors, *rest[-1:]])}]")


def explain(method: "Method") -> str:
    """Everything about a method, as text."""
    from protolith.data.spec import all_tasks
    from protolith.runs.defaults import options_for

    lines = [
        f"{method.title}: {method.idea}",
        f"paper      {method.paper}",
        f"objective  {method.objective}",
        f"server     {method.server_step}",
        f"traffic    {method.traffic}",
        f"passes     {method.passes}",
        f"memory     {method.memory}",
        f"accuracy   {method.accuracy}",
    ]
    if method.notes:
        lines.append(f"note       {method.notes}")
    fields = method.params.model_fields
    lines.append("options    set with --set name=value" if fields else "options    none of its own")
    for name, info in fields.items():
        lines.append(f"  {name} = {info.default}: {info.description}")
        for task in all_tasks():
            if name in (values := options_for(task, method)):
                lines.append(f"    on {task}: {values[name]}")
    return "\n".join(lines)


def tasks(plugin: Plugin = None) -> None:
    """List the tasks."""
    for spec in _tasks(plugin).values():
        print(f"{spec.name:<10} {', '.join(spec.domains)}: {spec.description}")
    print(f"{'DIR':<10} a folder of site/class/image, or a manifest (.csv, .parquet) with path, label, site and split")


def _tasks(plugins: list[str] | None) -> "dict[str, TaskSpec]":
    """The named tasks, with those of plug-ins."""
    from protolith.data.spec import all_tasks

    if plugins:
        from protolith.methods.registry import load_plugin

        for plugin in plugins:
            load_plugin(plugin)
    return all_tasks()


def presets() -> None:
    """List the presets, for `protolith run --config NAME`."""
    for name in preset_names():
        print(f"{name:<20} {describe_preset(name)}")


@data.command("info")
def info(
    task: Annotated[str, typer.Argument()], data: Directory = None, size: Size = None, plugin: Plugin = None
) -> None:
    """Say what a task is, its licence, where it comes from, and whether it is here."""
    from protolith.data.inspect import task_info

    _tasks(plugin)
    found = task_info(task, data=data, size=size)
    print(f"{found.name}: {found.description}")
    print(f"licence  {found.licence}")
    print(f"origin   {found.origin}")
    print(f"classes  {', '.join(found.classes)}")
    print(f"split    {found.split}")
    for place in found.places:
        print(f"{place.domain:<14} {'here' if place.here else 'not here'}: {place.where}")


@data.command("check")
def check(
    task: Annotated[str, typer.Argument(metavar="TASK|PATH", help="A task, a folder of sites, or a manifest.")],
    data: Directory = None,
    size: Size = None,
    plugin: Plugin = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON (for a path).")] = False,
) -> None:
    """Count images by site and class; of your own, also find problems and suggest settings with their time."""
    from protolith.data.tasks import load_task

    if task not in _tasks(plugin):
        _check_own(task, json)
        return
    _print_counts(load_task(task, data=data, size=size, progress=_say))


def _print_counts(loaded: "Task") -> None:
    from protolith.data.inspect import counts_table

    rows = [["domain", "split", "images", *loaded.classes]]
    rows += [[row.domain, row.split, f"{row.total:,}", *map(str, row.per_class)] for row in counts_table(loaded)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join([row[0].ljust(widths[0]), row[1].ljust(widths[1]), *cells[2:]]))
    for note in loaded.notes:
        print(note)


def _check_own(path: str, json: bool) -> None:
    """Check images of one's own; exit code 1 where nothing can be trained on."""
    from protolith.cli.progress import print_json
    from protolith.use.check import check as check_own

    try:
        found = check_own(path, progress=_say)
    except NothingRead as error:
        _say(f"protolith: {error}")
        raise typer.Exit(1) from None
    print_json(found.plain()) if json else print(found.text())
    if found.faults:
        raise typer.Exit(1)


@data.command("preview")
def preview(
    task: Annotated[str, typer.Argument()],
    data: Directory = None,
    size: Size = None,
    plugin: Plugin = None,
    out: Annotated[Path, typer.Option(help="Where to write the picture.")] = Path("preview.png"),
) -> None:
    """Write a contact sheet: some images of every site and class."""
    from protolith.data.inspect import contact_sheet
    from protolith.data.tasks import load_task

    _tasks(plugin)
    contact_sheet(load_task(task, data=data, size=size, progress=_say), out)
    print(f"wrote {out}")


def _say(text: str) -> None:
    typer.echo(text, err=True)
