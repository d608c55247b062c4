"""`protolith run`, `resume` and `sweep`.

Here as in the other commands, what computes is imported when a command runs: `--help` must not wait for torch.
"""

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protolith.cli.options import (
    Address,
    Attackers,
    AttackKind,
    Config,
    Data,
    DeploymentOption,
    Device,
    Engine,
    Init,
    Json,
    Method,
    Model,
    NoDiagnostics,
    Out,
    Plugin,
    Protocol,
    Report,
    Rounds,
    Seed,
    Set,
    SkipBad,
    Task,
    Track,
    Tune,
    Weights,
    WithBaselines,
    Workers,
)

if TYPE_CHECKING:
    from protolith.runs.run import Run
    from protolith.runs.runner import Observer
    from protolith.use.baselines import Baselines


def run(
    method: Method = None,
    model: Model = None,
    weights: Weights = None,
    tune: Tune = None,
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
    """Train with one method and print its accuracy at every site."""
    from protolith.cli import request, result
    from protolith.cli.progress import observer, print_json
    from protolith.extras import need
    from protolith.flower import submit
    from protolith.flower.plan import Deployment
    from protolith.runs import runner
    from protolith.runs.run import Run

    if report:
        need("--report", "report")
    flags = request.flags_of(
        method=method, task=task, protocol=protocol, data=data, rounds=rounds, seed=seed, workers=workers,
        engine=engine, address=address, device=device, plugins=plugin, skip_bad=skip_bad or None,
        init=str(init.resolve()) if init else None, diagnostics=False if no_diagnostics else None,
        attack=request.attack_of(attack, attackers), model=request.model_of(model, weights, tune),
    )  # fmt: skip
    at_sites = Deployment.open(deployment).settings() if deployment else {}
    with redirect_stdout(sys.stderr):  # whatever a plug-in prints: the output is the result alone
        watcher = result.tracked(observer(), track)
        resolved = request.resolved(request.given(config, flags, set_ or [], at_sites), watcher.say)
        place = out or runner.free_directory(resolved, Path("runs"))
        try:
            done = Run(submit.start(resolved, place, watcher).path)
            compared = _baselines(done, watcher) if with_baselines else None
        finally:
            watcher.close()
        page = result.write_page(done.path) if report else None
    if compared and json:
        print_json({**done.summary.to_json(), "baselines": compared.plain()})
        return
    result.show(done, json, page)
    if compared:
        print(compared.text())


def _baselines(run: "Run", watcher: "Observer") -> "Baselines":
    from protolith.use.baselines import run_baselines

    return run_baselines(run, watcher)


def resume(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    workers: Workers = None,
    deployment: DeploymentOption = None,
    track: Track = None,
    json: Json = False,
) -> None:
    """Go on with a run that was stopped or killed."""
    from protolith.cli import result
    from protolith.cli.progress import observer
    from protolith.flower import submit
    from protolith.runs.run import Run

    with redirect_stdout(sys.stderr):
        watcher = result.tracked(observer(), track)
        try:
            done = Run(submit.resume(directory, watcher, workers, deployment).path)
        finally:
            watcher.close()
    result.show(done, json)


def sweep(
    methods: Annotated[str, typer.Option(help="Methods to compare, separated by commas.")],
    out: Annotated[Path, typer.Option(help="Directory for all runs; a sweep that was stopped goes on from it.")],
    seeds: Annotated[str, typer.Option(help="Seeds, separated by commas.")] = "0",
    model: Model = None,
    weights: Weights = None,
    tune: Tune = None,
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
    from protolith.cli import request, result
    from protolith.cli.sweep_progress import sweep_observer
    from protolith.experiments.sweep import run_sweep
    from protolith.extras import need

    if report:
        need("--report", "report")
    flags = request.flags_of(
        task=task, protocol=protocol, data=data, rounds=rounds, workers=workers, device=device, plugins=plugin,
        diagnostics=False if no_diagnostics else None, model=request.model_of(model, weights, tune),
    )  # fmt: skip
    with redirect_stdout(sys.stderr):
        watcher = sweep_observer()
        configs = request.configs_of(methods, seeds, config, flags, set_ or [], watcher.say)
        try:
            outcomes = run_sweep(configs, out, watcher, jobs)
        finally:
            watcher.close()
        page = result.write_page(out) if report else None
    result.show_all(outcomes, json)
    sys.stdout.flush()
    print(result.where_to_look(out, page), file=sys.stderr)  # the output is the table alone
    result.name_failed(outcomes)
