"""`protolith options`: every setting, and the help of `run`, which shows those that most people use."""

from typing import TYPE_CHECKING, Annotated, Any

import click
import typer

from protolith.cli.options import Plugin

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

USUAL = ("method", "model", "task", "data", "protocol", "rounds", "seed", "out", "set_", "report")


class ShortHelp(typer.core.TyperCommand):
    """A command whose help shows the usual options and names the others."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        others = [option for option in self.params if option.name not in USUAL]
        for option in others:
            option.hidden = True  # type: ignore[attr-defined]  # of click's options, which these are
        named_ = ", ".join(option.opts[0] for option in others)
        self.epilog = f"Also {named_}: `protolith options` says what they do, and which settings --set takes."


def options(
    context: typer.Context,
    word: Annotated[
        str | None, typer.Argument(help="Only those with this word; or a method, to see its own options too.")
    ] = None,
    plugin: Plugin = None,
) -> None:
    """List every setting, for --set and configuration files, with its default, and the options of `run`."""
    from protolith.errors import unknown
    from protolith.methods.registry import get_method, load_plugin, method_names

    for one in plugin or []:
        load_plugin(one)
    is_method = word is not None and word.casefold() in {name.casefold() for name in method_names()}
    every = _every(get_method(word if is_method and word else "fedavg").name, own=is_method)
    lines = {key: f"{key} = {info.get_default(call_default_factory=True)!r}: {info.description}" for key, info in every}
    lines |= _of_run(context)
    if word is not None and not is_method:
        found = {key: line for key, line in lines.items() if word.casefold() in line.casefold()}
        if not found:
            raise unknown("setting", word, [*lines, *method_names()], "`protolith options` lists all")
        lines = found
    print("\n".join(lines.values()))


def _every(method: str, own: bool) -> "list[tuple[str, FieldInfo]]":
    from protolith.methods.registry import get_method
    from protolith.runs.config import RunConfig, settings_of

    every = [(key, info) for key, info in settings_of(RunConfig).items() if key != "params"]
    fields = get_method(method).params.model_fields if own else {}
    return every + [(f"params.{name}", info) for name, info in fields.items()]


def _of_run(context: typer.Context) -> dict[str, str]:
    """The options of `run`, which are there under these names besides."""
    group = context.find_root().command
    assert isinstance(group, click.Group | typer.core.TyperGroup)
    run = group.commands["run"]
    return {
        option.opts[0]: f"run {option.opts[0]}: {getattr(option, 'help', '')}"
        for option in run.params
        if option.name != "help"
    }
