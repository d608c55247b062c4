"""A run from its configuration to its summary, and on from where it was stopped."""

import time
from pathlib import Path

from protolith import files
from protolith.data.domain import Task
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.engines.local import LocalEngine
from protolith.errors import DiskRefused, Interrupted, UserError
from protolith.evaluation import measures
from protolith.federation.coordinator import Coordinator, which_models
from protolith.federation.engine import Engine, Sites
from protolith.federation.local_update import Workplace, one_thread, present_device
from protolith.machine import cores
from protolith.methods import registry
from protolith.methods.registry import load_plugin
from protolith.models.registry import only_here
from protolith.models.saved import write_model
from protolith.records import BadRecord, nbytes
from protolith.runs import stopping
from protolith.runs.accounting import Account, refuse_unaccountable, sentences_of
from protolith.runs.checkpoints import Checkpoints
from protolith.runs.config import RunConfig, complete_for, validated
from protolith.runs.diagnostics import FOLDER, PrototypeLog, write_tests
from protolith.runs.directory import Metrics, RunDirectory
from protolith.runs.starting import Start, starting_weights
from protolith.runs.summary import summarise


class Observer:
    """Who is told how a run goes. Every method may be overridden; none has to be."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Hear that rounds begin, after so many that are done."""

    def round_done(self, metrics: Metrics) -> None:
        """Hear what came of a round, which counts from 1."""

    def finished(self, summary: Metrics) -> None:
        """Hear the result."""

    def close(self) -> None:
        """Hear that nothing more comes."""


def start(config: RunConfig, out: Path, observer: Observer) -> RunDirectory:
    """Start a new run in a new directory."""
    _refuse_elsewhere(config)
    refuse_absent_device(config)
    refuse_unaccountable(config)
    task = _load(config, observer)
    config = complete_for(config, task)
    workplace = Workplace(config, task)  # refuses what cannot work before anything is written
    stopping.refuse_unsuitable(config, which_models(config, workplace.method.server))  # and so does this
    if config.init:
        for sentence in starting_weights(config, workplace).notes:
            observer.say(sentence)
    directory = RunDirectory.create(out, config)
    go_on(directory, config, workplace, observer)
    return directory


def resume(path: Path, observer: Observer, workers: int | None = None) -> RunDirectory:
    """Go on with a run that was stopped or killed."""
    directory = RunDirectory.open(path)
    config = directory.config()
    _refuse_elsewhere(config)
    if workers is not None:
        config = config.model_copy(update={"workers": workers})
    if summary := directory.summary():
        observer.say(f"{path} is complete: nothing to resume.")
        observer.finished(summary)
        return directory
    refuse_absent_device(config)
    for plugin in config.plugins:
        load_plugin(plugin)
    validated(registry.get_method(config.method).params, config.params, "params.")
    go_on(directory, config, Workplace(config, _load(config, observer)), observer)
    return directory


def _refuse_elsewhere(config: RunConfig) -> None:
    if config.engine == "flower":
        raise UserError(f"engine = '{config.engine}': such a run is started with `protolith run --deployment DIR`.")


def refuse_absent_device(config: RunConfig) -> None:
    """Refuse a device that this machine lacks; with other engines the work is done on other machines."""
    if config.engine == "local":
        present_device(config.device)


def free_directory(config: RunConfig, parent: Path) -> Path:
    """Find a name for a run that has none."""
    stem = f"{Path(config.task).name}-{config.protocol.name}-{config.method}-seed{config.seed}"
    path, number = parent / stem, 2
    while path.exists():
        path, number = parent / f"{stem}-{number}", number + 1
    return path


def _load(config: RunConfig, observer: Observer) -> Task:
    return load_task(
        config.task,
        data=Path(config.data) if config.data else None,
        size=config.size,
        progress=observer.say,
        skip_bad=config.skip_bad,
        fit=config.model.fit,
    )


def go_on(
    directory: RunDirectory,
    config: RunConfig,
    workplace: Workplace,
    observer: Observer,
    sites: Sites | None = None,
) -> None:
    """Run the rounds that are left, with an engine of this machine or at the sites."""
    with directory.lock(), one_thread():
        try:
            _go_on(directory, config, workplace, observer, sites)
        except DiskRefused as error:
            raise _refused(directory, str(error)) from None
        except OSError as error:
            if not (reason := files.refusal(error)):
                raise
            raise _refused(directory, reason) from None


def _refused(directory: RunDirectory, reason: str) -> DiskRefused:
    return DiskRefused(
        f"the run in {directory.path} cannot be written ({reason}). Its checkpoints are whole: when that is mended, "
        f"go on with: protolith resume {directory.path}"
    )


def _go_on(
    directory: RunDirectory, config: RunConfig, workplace: Workplace, observer: Observer, sites: Sites | None
) -> None:
    directory.remove_parts()
    roster = workplace.roster  # asked for while the network that the seed drew is at hand
    began_from = starting_weights(config, workplace)
    server = workplace.server(began_from.weights)
    workers = worker_count(config, len(workplace.allocation.clients))
    engine = sites or _engine(config, workplace, workers, nbytes(server.weights))
    try:
        coordinator = Coordinator(
            config,
            workplace.allocation,
            server,
            engine,
            directory.memory,
            config.evaluate_every,
            directory.path / "models",
        )
        if sites:
            sites.look_ahead(coordinator)
        checkpoints = Checkpoints(directory.path / "checkpoint", coordinator.memory_file, coordinator.counts_of)
        if checkpoint := checkpoints.latest(observer.say):
            server.load_state(checkpoint.state)
            coordinator.progress = checkpoint.progress
        if lost := directory.keep_metrics_of_first(coordinator.progress.round):
            observer.say(f"metrics.jsonl is damaged: {lost} round(s) are missing from it and from the summary.")
        observer.started(config, directory, coordinator.progress.round, getattr(engine, "actors", workers))
        prototypes = PrototypeLog(directory.path / FOLDER, workplace.allocation, workplace.task.classes, roster)
        if config.diagnostics:
            coordinator.listen = prototypes.hear
        stop = stopping.Stopping(config, directory, workplace)
        _rounds(directory, config, workplace, coordinator, checkpoints, prototypes, stop, observer)
    finally:
        engine.close()
    stop.take_best(coordinator)
    if config.diagnostics and sites is None:  # with sites, nobody but they has images
        _save_tests(directory, workplace, coordinator, observer)
    _finish(directory, config, workplace, coordinator, began_from, observer)


def worker_count(config: RunConfig, clients: int) -> int:
    """How many worker processes a run uses."""
    return min(cores(), clients) if config.workers < 0 else config.workers


def _engine(config: RunConfig, workplace: Workplace, workers: int, model_bytes: int) -> Engine:
    if workers == 0 and config.engine == "local":
        return InProcessEngine(workplace)
    for what, name, unknown_there in (
        ("method", config.method, registry.only_here(config.method)),
        ("model", config.model.name, only_here(config.model.name)),
        *(("measure", name, measures.only_here(name)) for name in config.measures),
    ):
        if unknown_there and not config.plugins:
            raise UserError(
                f"worker processes do not know the {what} '{name}': put it into a module or .py file and name that in "
                "plugins, or use workers = 0."
            )
    if config.engine == "ray":
        from protolith.engines.ray.engine import RayEngine  # an extra that takes seconds to import

        most = len(workplace.allocation.clients)
        return RayEngine(config, workplace.task, workplace.allocation.measured, config.workers, most, config.address)
    return LocalEngine(config, workplace.task, workplace.allocation.measured, workers, model_bytes)


def _rounds(
    directory: RunDirectory,
    config: RunConfig,
    workplace: Workplace,
    coordinator: Coordinator,
    checkpoints: Checkpoints,
    prototypes: PrototypeLog,
    stop: stopping.Stopping,
    observer: Observer,
) -> None:
    state, progress = coordinator.server.state(), coordinator.progress.copy()
    account = Account(config, [client.name for client in workplace.allocation.clients])
    written, writing = progress.round, 0.0
    try:
        while coordinator.progress.round < config.rounds and not stop.now:
            began = time.perf_counter()
            metrics = coordinator.run_round()
            releases: dict[str, int] = {}
            if isinstance(coordinator.engine, Sites):
                metrics |= coordinator.engine.events()
                releases = coordinator.engine.releases
            metrics |= account.after(coordinator.progress.round - 1, releases)
            state, progress = coordinator.server.state(), coordinator.progress.copy()
            # A round's line comes before its checkpoint, so that no checkpoint is ahead of the metrics; the
            # time that a checkpoint takes is therefore found in the next round's line.
            prototypes.write(progress.round - 1, coordinator.server)
            metrics["seconds"]["checkpoint"] = writing
            metrics["seconds"]["total"] = time.perf_counter() - began + writing
            stop.hear(metrics, coordinator)
            directory.append_metrics(metrics)
            if progress.round in config.keep_models and coordinator.server.evaluates == "global":
                write_global_model(directory.models / f"round-{progress.round:06d}.safetensors", workplace, coordinator)
            writing = 0.0
            if progress.round % config.checkpoint_every == 0 or progress.round == config.rounds or stop.now:
                before = time.perf_counter()
                checkpoints.write(state, progress)
                written, writing = progress.round, time.perf_counter() - before
            observer.round_done(metrics)
    except KeyboardInterrupt:
        # The round that was under way is lost; the last complete one is not.
        if progress.round > written:
            checkpoints.write(state, progress)
        raise Interrupted(directory.path, progress.round) from None


def _save_tests(directory: RunDirectory, workplace: Workplace, coordinator: Coordinator, observer: Observer) -> None:
    """Save what the report shows of the test images; a run does not fail for want of it."""
    try:
        write_tests(directory.path, workplace, coordinator)
    except (OSError, BadRecord) as error:
        if isinstance(error, OSError) and files.refusal(error):  # resuming makes up for it
            raise
        observer.say(f"predictions for the report are not saved: {error}")


def _finish(
    directory: RunDirectory,
    config: RunConfig,
    workplace: Workplace,
    coordinator: Coordinator,
    began_from: Start,
    observer: Observer,
) -> None:
    _write_models(directory, workplace, coordinator)
    summary = {**summarise(directory, config, workplace, coordinator), **began_from.summary()}
    directory.write_summary(summary)
    for sentence in sentences_of(summary):
        observer.say(sentence)
    observer.finished(summary)


def _write_models(directory: RunDirectory, workplace: Workplace, coordinator: Coordinator) -> None:
    """Write the models: the global one, and the aggregated clients' own (those after training are written by then)."""
    if coordinator.server.evaluates == "global":
        write_global_model(directory.path / "model.safetensors", workplace, coordinator)
    if coordinator.tested == "aggregated":
        for client in sorted(coordinator.progress.memories):
            record = coordinator.own_weights(client)
            write_model(coordinator.model_file(client), record, workplace.about_model())


def write_global_model(path: Path, workplace: Workplace, coordinator: Coordinator) -> None:
    """Write the global model and what the server knows besides."""
    server = coordinator.server
    write_model(path, server.weights, workplace.about_model(), server.knowledge)
