"""`protolith run`, `resume` and `sweep`."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from protolith.cli.progress import observer, print_json, sparkline, sweep_observer
from protolith.data.tasks import TASKS
from protolith.deploy import submit
from protolith.deploy.plan import Deployment
from protolith.errors import UserError, unknown
from protolith.experiments.presets import preset_names, read_preset
from protolith.experiments.render import render
from protolith.experiments.sweep import Outcome, log_file, run_sweep
from protolith.experiments.table import build_tables
from protolith.runs import runner
from protolith.runs.config import merge, parse_set, read_toml, resolve
from protolith.runs.defaults import Tree
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer
from protolith.use.baselines import run_baselines

Method = Annotated[str | None, typer.Option(help="The algorithm (see `protolith methods`). [default: fedavg]")]
Task = Annotated[
    str | None,
    typer.Option(
        help="mini, digits, digit5, office10, pacs, a folder of site/class/image, or a manifest. [default: mini]"
    ),
]
Protocol = Annotated[
    str | None,
    typer.Option(
        help="shift, equal, unseen, sites, local: who holds what, what is tested. [default: shift; a folder: sites]"
    ),
]
Data = Annotated[str | None, typer.Option(help="Directory that holds the task's data.")]
Rounds = Annotated[int | None, typer.Option(help="Communication rounds.")]
Seed = Annotated[int | None, typer.Option(help="All random numbers follow from it. [default: 0]")]
Workers = Annotated[
    int | None, typer.Option(help="Worker processes; 0 runs everything in one process. [default: one a core]")
]
Engine = Annotated[
    str | None,
    typer.Option(
        help="Where clients' work is executed: local, ray (a cluster) or flower (real sites). [default: local]"
    ),
]
DeploymentOption = Annotated[
    Path | None, typer.Option("--deployment", help="A deployment's directory (`protolith deploy`), for engine flower.")
]
Address = Annotated[
    str | None, typer.Option(help="A Ray cluster (auto: the one of this machine), for engine ray. [default: a new one]")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. [default: auto]")]
Out = Annotated[Path | None, typer.Option(help="Directory for everything the run produces. [default: runs/<name>]")]
Config = Annotated[str | None, typer.Option(help="A TOML file with settings, or a preset (see `protolith presets`).")]
Plugin = Annotated[
    list[str] | None, typer.Option(help="A module or .py file with a method or model of your own; may be repeated.")
]
Init = Annotated[Path | None, typer.Option("--init", metavar="FILE", help="Weights to start from, as safetensors.")]
WithBaselines = Annotated[
    bool,
    typer.Option("--with-baselines", help="Also train every site alone, FedAvg, and all data pooled; say what paid."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out images of your own that cannot be read (else: an error).")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, such as lr=0.1; may be repeated."),
]
AttackKind = Annotated[
    str | None, typer.Option("--attack", metavar="KIND", help="Simulate an attack (docs/robust.md), such as sign-flip.")
]
Attackers = Annotated[float | None, typer.Option(help="Share of the clients that attack. [default: 0.2]")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
NoDiagnostics = Annotated[
    bool, typer.Option("--no-diagnostics", help="Do not save predictions, features and prototypes for the report.")
]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Also write every round for TensorBoard.")]
Report = Annotated[bool, typer.Option("--report", help="Write report.html too, which takes a few seconds.")]


def run(
    method: Method = None,
    task: Task = None,
    protocol: Protocol = None,
    data: Data = None,
    rounds: Rounds = None,
    seed: Seed = None,
    workers: Workers = None,
    engine: Engine = None,
    address: Address = None,
    deployment: DeploymentOption = None,
    device: Device = None,
    out: Out = None,
    config: Config = None,
    plugin: Plugin = None,
    skip_bad: SkipBad = False,
    init: Init = None,
    attack: AttackKind = None,
    attackers: Attackers = None,
    with_baselines: WithBaselines = False,
    set_: Set = None,
    no_diagnostics: NoDiagnostics = False,
    report: Report = False,
    track: Track = None,
    json: Json = False,
) -> None:
    """Train with one method and print its accuracy on every domain."""
    flags = flags_of(
        method=method, task=task, protocol=protocol, data=data, rounds=rounds, seed=seed, workers=workers,
        engine=engine, address=address, device=device, plugins=plugin, skip_bad=skip_bad or None,
        init=str(init.resolve()) if init else None, diagnostics=False if no_diagnostics else None,
        attack=attack_of(attack, attackers),
    )  # fmt: skip
    at_sites = [Deployment.open(deployment).settings()] if deployment else []
    resolved = resolve([*at_sites, *_layers(config, flags, set_ or [])])
    place = out or runner.free_directory(resolved, Path("runs"))
    watcher = tracked(observer(), track)
    try:
        directory = submit.start(resolved, place, watcher)
        compared = run_baselines(directory, watcher) if with_baselines else None
    finally:
        watcher.close()
    page = write_page(directory.path) if report else None
    if compared and json:
        print_json({**(directory.summary() or {}), "baselines": compared.plain()})
        return
    _show(directory, json, page)
    if compared:
        print(compared.text())


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    workers: Workers = None,
    deployment: DeploymentOption = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped or killed."""
    watcher = tracked(observer(), track)
    try:
        done = submit.resume(directory, watcher, workers, deployment)
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
    jobs: Annotated[
        int | None, typer.Option(help="Runs at the same time. [default: one a core; 1 on a GPU or with --workers]")
    ] = None,
    workers: Workers = None,
    device: Device = None,
    config: Config = None,
    plugin: Plugin = None,
    set_: Set = None,
    no_diagnostics: NoDiagnostics = False,
    report: Report = False,
    json: Json = False,
) -> None:
    """Train with several methods and seeds, and print one table."""
    names = [name.strip() for name in methods.split(",") if name.strip()]
    flags = flags_of(
        task=task, protocol=protocol, data=data, rounds=rounds, workers=workers, device=device, plugins=plugin,
        diagnostics=False if no_diagnostics else None,
    )  # fmt: skip
    configs = []
    for seed in seeds_of(seeds):
        for name in names:
            layer = merge(flags, {"method": name, "seed": seed})
            configs.append(resolve(_layers(config, layer, set_ or [])))
    watcher = sweep_observer()
    try:
        outcomes = run_sweep(configs, out, watcher, jobs)
    finally:
        watcher.close()
    page = write_page(out) if report else None
    _show_all(outcomes, json)
    sys.stdout.flush()
    print(where_to_look(out, page), file=sys.stderr)  # the output is the table alone
    name_failed(outcomes)


def _show_all(outcomes: Sequence[Outcome], as_json: bool) -> None:
    """Print what is done as one table."""
    runs = [RunDirectory(outcome.path) for outcome in outcomes]
    if as_json:
        print_json([run.summary() for run in runs if run.summary()])
    elif any(outcome.state == "done" for outcome in outcomes):
        print(render(build_tables(runs), "text"), end="")


def name_failed(outcomes: Sequence[Outcome]) -> None:
    """Name the jobs that failed, and leave with the exit code that says so."""
    failed = [outcome for outcome in outcomes if outcome.state != "done"]
    if failed:
        sys.stdout.flush()
        print(f"protolith: {len(failed)} of {len(outcomes)} jobs failed:", file=sys.stderr)
        for outcome in failed:
            sentence = " ".join(outcome.error.split()).rstrip(".")
            print(f"  {outcome.path.name}: {sentence} (see {log_file(outcome.path)})", file=sys.stderr)
        raise typer.Exit(1)


def flags_of(protocol: str | None = None, **others: Any) -> Tree:
    """The options that were given, as a layer of settings."""
    flags = {name: value for name, value in others.items() if value is not None}
    if "task" in flags and flags["task"] not in TASKS and Path(flags["task"]).exists():
        flags["task"] = str(Path(flags["task"]).resolve())
    if "data" in flags:
        if not Path(flags["data"]).is_dir():
            raise UserError(f"--data {flags['data']}: the directory does not exist.")
        flags["data"] = str(Path(flags["data"]).resolve())
    if "plugins" in flags:
        flags["plugins"] = [str(Path(p).resolve()) if p.endswith(".py") else p for p in flags["plugins"]]
    return flags | ({"protocol": {"name": protocol}} if protocol is not None else {})


def attack_of(kind: str | None, share: float | None) -> Tree | None:
    """The options of an attack, as a layer of settings."""
    if share is not None and kind is None:
        raise UserError("--attackers needs --attack KIND.")
    given = {"kind": kind, "share": share}
    return {name: value for name, value in given.items() if value is not None} or None


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


def seeds_of(text: str) -> list[int]:
    """Seeds that were given with commas."""
    try:
        return [int(seed) for seed in text.split(",")]
    except ValueError:
        raise UserError(f"--seeds {text}: whole numbers separated by commas, such as 0,1,2.") from None


def _show(directory: RunDirectory, as_json: bool, page: Path | None = None) -> None:
    if as_json:
        print_json(directory.summary())
    else:
        print(render(build_tables([directory]), "text"), end="")
        print(f"accuracy by round  {sparkline([line['mean'] for line in directory.metrics() if line.get('mean')])}")
        print(f"everything is in {directory.path}")
        print(where_to_look(directory.path, page))


def tracked(watcher: Observer, track: str | None) -> Observer:
    """Have rounds written for TensorBoard too, where that is asked for."""
    if track is None:
        return watcher
    if track != "tensorboard":
        raise unknown("tracker in --track", track, ["tensorboard"])
    from protolith.report.track import TensorBoard

    return TensorBoard(watcher)


def write_page(path: Path) -> Path:
    """Write the report beside what it is about."""
    from protolith.report.page.build import write_report  # takes a second to import

    return write_report([path], path / "report.html")


def where_to_look(path: Path, page: Path | None) -> str:
    """The path of the report, or how to get one."""
    return f"the report is {page}" if page else f"see it: protolith report {path}"
