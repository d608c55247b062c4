"""`protolith run`, `resume` and `sweep`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from protolith.cli.progress import observer, print_json
from protolith.data.tasks import TASKS
from protolith.errors import UserError, unknown
from protolith.experiments.presets import preset_names, read_preset
from protolith.experiments.sweep import job_name, run_sweep
from protolith.experiments.table import build_table, render
from protolith.runs import runner
from protolith.runs.config import merge, parse_set, read_toml, resolve
from protolith.runs.defaults import Tree
from protolith.runs.directory import RunDirectory

Method = Annotated[str | None, typer.Option(help="The algorithm (see `protolith methods`). [default: fedavg]")]
Task = Annotated[
    str | None,
    typer.Option(help="mini, digits, digit5, office10, pacs, or a folder of domain/class/image. [default: mini]"),
]
Protocol = Annotated[
    str | None, typer.Option(help="shift, equal, unseen or local: who holds what, what is tested. [default: shift]")
]
Data = Annotated[str | None, typer.Option(help="Directory that holds the task's data.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Seed = Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")]
Workers = Annotated[
    int | None, typer.Option(help="Worker processes; 0 runs everything in one process. [default: one a core]")
]
Engine = Annotated[str | None, typer.Option(help="Where clients' work is executed: local. [default: local]")]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. [default: auto]")]
Out = Annotated[Path | None, typer.Option(help="Directory for everything the run produces. [default: runs/<name>]")]
Config = Annotated[str | None, typer.Option(help="A TOML file with settings, or a preset (see `protolith presets`).")]
Plugin = Annotated[
    list[str] | None, typer.Option(help="A module or .py file with a method or model of your own; may be repeated.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as lr=0.1; may be repeated."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def run(
    method: Method = None,
    task: Task = None,
    protocol: Protocol = None,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    engine: Engine = None,
    device: Device = None,
    out: Out = None,
    config: Config = None,
    plugin: Plugin = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Train with one method and print its accuracy on every domain."""
    flags = _flags(
        method=method, task=task, protocol=protocol, data=data, rounds=rounds, seed=seed, workers=workers,
        engine=engine, device=device, plugins=plugin,
    )  # fmt: skip
    resolved = resolve(_layers(config, flags, set_ or []))
    place = out or runner.free_directory(resolved, Path("runs"))
    watcher = observer()
    try:
        directory = runner.start(resolved, place, watcher)
    finally:
        watcher.close()
    _show(directory, json)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped or killed."""
    watcher = observer()
    try:
        done = runner.resume(directory, watcher, workers)
    finally:
        watcher.close()
    _show(done, json)


def sweep(
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas.")],
    out: Annotated[Path, typer.Option(help="Directory for all runs; a sweep that was stopped goes on from it.")],
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    task: Task = None,
    protocol: Protocol = None,
    data: Data = None,
    rounds: Rounds = None,
    workers: Workers = None,
    device: Device = None,
    config: Config = None,
    plugin: Plugin = None,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Train with several methods and seeds, and print one table."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    flags = _flags(
        task=task, protocol=protocol, data=data, rounds=rounds, workers=workers, device=device, plugins=plugin
    )
    configs = []
    for seed in _seeds(seeds):
        for name in names:
            layer = merge(flags, {"method": name, "seed": seed})
            configs.append(resolve(_layers(config, layer, set_ or [])))
    failed = run_sweep(configs, out, observer)
    runs = [RunDirectory(out / job_name(config)) for config in configs]
    if json:
        print_json([run.summary() for run in runs if run.summary()])
    else:
        print(render(build_table(runs), "text"))
    if failed:
        raise typer.Exit(1)


def _flags(protocol: str | None = None, **others: Any) -> Tree:
    """The options that were given, as a layer of settings."""
    flags = {name: value for name, value in others.items() if value is not None}
    if "task" in flags and flags["task"] not in TASKS and Path(flags["task"]).is_dir():
        flags["task"] = str(Path(flags["task"]).resolve())
    if "data" in flags:
        if not Path(flags["data"]).is_dir():
            raise UserError(f"--data {flags['data']}: the directory does not exist.")
        flags["data"] = str(Path(flags["data"]).resolve())
    if "plugins" in flags:
        flags["plugins"] = [str(Path(p).resolve()) if p.endswith(".py") else p for p in flags["plugins"]]
    return flags | ({"protocol": {"name": protocol}} if protocol is not None else {})


def _layers(config: str | None, flags: Tree, settings: Iterable[str]) -> list[Tree]:
    """File, then flags, then --set: the later wins."""
    base: Tree = {}
    if config is not None:
        if config in preset_names():
            base = read_preset(config)
        elif Path(config).is_file():
            base = read_toml(Path(config))
        elif config.endswith(".toml"):
            raise UserError(f"--config {config}: the file does not exist.")
        else:
            raise unknown("preset in --config", config, preset_names())
    method = str(flags.get("method", base.get("method", "fedavg")))
    return [base, flags, parse_set(settings, method, flags.get("plugins") or base.get("plugins", []))]


def _seeds(text: str) -> list[int]:
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: whole numbers separated by commas, such as 0,1,2.") from None


def _show(directory: RunDirectory, as_json: bool) -> None:
    if as_json:
        print_json(directory.summary())
    else:
        print(render(build_table([directory]), "text"))
        print(f"everything is in {directory.path}")
