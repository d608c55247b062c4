"""A run from its configuration to its summary, and on from where it was stopped."""

import os
import time
from pathlib import Path
from typing import Any

from protolith import records
from protolith.data.domain import Task
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.engines.local import LocalEngine
from protolith.errors import UserError
from protolith.federation.coordinator import Coordinator
from protolith.federation.engine import Engine
from protolith.federation.local_update import Workplace, one_thread
from protolith.methods import registry
from protolith.methods.registry import load_plugin
from protolith.models.registry import only_here
from protolith.records import nbytes, under_prefix
from protolith.runs.checkpoints import Checkpoints
from protolith.runs.config import RunConfig, complete_for
from protolith.runs.directory import Metrics, RunDirectory, versions

LAST = 5


class Observer:
    """Who is told how a run goes. Every method may be overridden; none has to be."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Hear that rounds begin."""

    def round_done(self, metrics: Metrics) -> None:
        """Hear what came of a round."""

    def finished(self, summary: Metrics) -> None:
        """Hear the result."""

    def close(self) -> None:
        """Hear that nothing more comes."""


class Interrupted(Exception):
    """The user stopped the run; it can be resumed."""

    def __init__(self, path: Path, round_: int) -> None:
        super().__init__(f"stopped before round {round_ + 1}; go on with: protolith resume {path}")


def start(config: RunConfig, out: Path, observer: Observer) -> RunDirectory:
    """Start a new run in a new directory."""
    task = _load(config, observer)
    config = complete_for(config, task)
    workplace = Workplace(config, task)  # refuses what cannot work before anything is written
    directory = RunDirectory.create(out, config)
    _go_on(directory, config, workplace, observer)
    return directory


def resume(path: Path, observer: Observer, workers: int | None = None) -> RunDirectory:
    """Go on with a run that was stopped or killed."""
    directory = RunDirectory.open(path)
    config = directory.config()
    if workers is not None:
        config = config.model_copy(update={"workers": workers})
    if summary := directory.summary():
        observer.say(f"{path} is complete: nothing to resume.")
        observer.finished(summary)
        return directory
    for plugin in config.plugins:
        load_plugin(plugin)
    _go_on(directory, config, Workplace(config, _load(config, observer)), observer)
    return directory


def free_directory(config: RunConfig, parent: Path) -> Path:
    """Find a name for a run that has none."""
    stem = f"{Path(config.task).name}-{config.protocol.name}-{config.method}-seed{config.seed}"
    path, number = parent / stem, 2
    while path.exists():
        path, number = parent / f"{stem}-{number}", number + 1
    return path


def _load(config: RunConfig, observer: Observer) -> Task:
    return load_task(
        config.task, data=Path(config.data) if config.data else None, size=config.size, progress=observer.say
    )


def _go_on(directory: RunDirectory, config: RunConfig, workplace: Workplace, observer: Observer) -> None:
    with directory.lock(), one_thread():
        roster = workplace.roster()
        server = workplace.method.server(workplace.params, workplace.initial, roster)
        workers = worker_count(config, len(workplace.allocation.clients))
        engine = _engine(config, workplace, workers, nbytes(server.weights))
        try:
            coordinator = Coordinator(
                config, workplace.allocation, server, engine, directory.memory, config.evaluate_every
            )
            checkpoints = Checkpoints(directory.path / "checkpoint", coordinator.memory_file)
            if checkpoint := checkpoints.latest(observer.say):
                server.load_state(checkpoint.state)
                coordinator.progress = checkpoint.progress
            directory.keep_metrics_before(coordinator.progress.round)
            observer.started(config, directory, coordinator.progress.round, workers)
            _rounds(directory, config, coordinator, checkpoints, observer)
        finally:
            engine.close()
        _finish(directory, config, workplace, coordinator, observer)


def worker_count(config: RunConfig, clients: int) -> int:
    """How many worker processes a run uses."""
    return min(os.cpu_count() or 1, clients) if config.workers < 0 else config.workers


def _engine(config: RunConfig, workplace: Workplace, workers: int, model_bytes: int) -> Engine:
    if workers == 0:
        return InProcessEngine(workplace)
    for what, name, unknown_there in (
        ("method", config.method, registry.only_here(config.method)),
        ("model", config.model.name, only_here(config.model.name)),
    ):
        if unknown_there and not config.plugins:
            raise UserError(
                f"worker processes do not know the {what} '{name}': put it into a module or .py file and name that in "
                "plugins, or use workers = 0."
            )
    return LocalEngine(config, workplace.task, workplace.allocation.tests, workers, model_bytes)


def _rounds(
    directory: RunDirectory,
    config: RunConfig,
    coordinator: Coordinator,
    checkpoints: Checkpoints,
    observer: Observer,
) -> None:
    state, progress = coordinator.server.state(), coordinator.progress.copy()
    written, writing = progress.round, 0.0
    try:
        while coordinator.progress.round < config.rounds:
            began = time.perf_counter()
            metrics = coordinator.run_round()
            state, progress = coordinator.server.state(), coordinator.progress.copy()
            # A round's line comes before its checkpoint, so that no checkpoint is ahead of the metrics; the
            # time that a checkpoint takes is therefore found in the next round's line.
            metrics["seconds"]["checkpoint"] = writing
            metrics["seconds"]["total"] = time.perf_counter() - began + writing
            directory.append_metrics(metrics)
            writing = 0.0
            if progress.round % config.checkpoint_every == 0 or progress.round == config.rounds:
                before = time.perf_counter()
                checkpoints.write(state, progress)
                written, writing = progress.round, time.perf_counter() - before
            observer.round_done(metrics)
    except KeyboardInterrupt:
        # The round that was under way is lost; the last complete one is not.
        if progress.round > written:
            checkpoints.write(state, progress)
        raise Interrupted(directory.path, progress.round) from None


def _finish(
    directory: RunDirectory, config: RunConfig, workplace: Workplace, coordinator: Coordinator, observer: Observer
) -> None:
    _write_models(directory, workplace, coordinator)
    summary = summarise(directory, config, workplace, coordinator)
    directory.write_summary(summary)
    observer.finished(summary)


def _write_models(directory: RunDirectory, workplace: Workplace, coordinator: Coordinator) -> None:
    """Write the global model, or the clients' own where there is no global one."""
    server, config = coordinator.server, workplace.setup
    about = {
        "protolith": versions()["protolith"],
        "method": config.method,
        "model": config.model.name,
        "width": config.model.width,
        "size": config.size,
        "classes": list(workplace.task.classes),
    }
    if coordinator.server.evaluates == "global":
        record = {**server.weights, **records.with_prefix("knowledge", server.knowledge)}
        records.write(directory.path / "model.safetensors", record, about=about, sync=True)
        return
    folder = directory.path / "models"
    folder.mkdir(exist_ok=True)
    for client, round_ in sorted(coordinator.progress.memories.items()):
        own = under_prefix("own", records.read(coordinator.memory_file(client, round_)))
        name = workplace.allocation.clients[client].name
        records.write(folder / f"{name}.safetensors", {**server.weights, **own}, about=about, sync=True)


def summarise(
    directory: RunDirectory, config: RunConfig, workplace: Workplace, coordinator: Coordinator
) -> dict[str, Any]:
    """Average the last rounds, and say how that was done."""
    lines = directory.metrics()
    tested = [line for line in lines if "accuracy" in line][-LAST:]
    accuracy = _means(tested, "accuracy")
    summary: dict[str, Any] = {
        "method": config.method,
        "task": config.task,
        "protocol": config.protocol.name,
        "seed": config.seed,
        "rounds": config.rounds,
        "rule": f"mean of the last {len(tested)} rounds ({tested[0]['round'] + 1} to {tested[-1]['round'] + 1})",
        "accuracy_of": "the clients' own models" if coordinator.evaluates == "clients" else "the global model",
        "accuracy": accuracy,
        "mean": sum(accuracy.values()) / len(accuracy),
        "notes": list(workplace.task.notes),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "rejected": sum(len(line["rejected"]) for line in lines),
        "seconds": sum(line["seconds"]["total"] for line in lines),
        "versions": versions(),
    }
    if "across" in tested[-1]:
        summary["across"] = _means(tested, "across")
    return summary


def _means(lines: list[Metrics], key: str) -> dict[str, float]:
    """Average by domain over the rounds; a domain whose clients had not trained yet counts from when they had."""
    found: dict[str, list[float]] = {}
    for line in lines:
        for domain, value in line[key].items():
            found.setdefault(domain, []).append(value)
    return {domain: sum(found[domain]) / len(found[domain]) for domain in lines[-1][key]}
