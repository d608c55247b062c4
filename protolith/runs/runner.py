"""A run from its configuration to its summary, and on from where it was stopped."""

from pathlib import Path

from protolith import files
from protolith.data.domain import Task
from protolith.engines.in_process import InProcessEngine
from protolith.engines.local import LocalEngine
from protolith.errors import DiskRefused, Interrupted, UserError
from protolith.evaluation import measures
from protolith.federation import rounds
from protolith.federation.coordinator import Coordinator, Metrics, which_models
from protolith.federation.engine import Engine
from protolith.federation.frozen import trained_on
from protolith.federation.hooks import Hook, Sites
from protolith.federation.local_update import Workplace, one_thread, present_device
from protolith.machine import cores
from protolith.methods import registry
from protolith.methods.base import Roster
from protolith.methods.registry import load_plugin
from protolith.models.registry import only_here
from protolith.records import nbytes
from protolith.runs import allocation, stopping
from protolith.runs.accounting import Account, refuse_unaccountable, sentences_of
from protolith.runs.checkpoints import Checkpoints
from protolith.runs.config import RunConfig, complete_for, validated, with_weights
from protolith.runs.diagnostics import FOLDER, PrototypeLog, TestLog
from protolith.runs.directory import RunDirectory
from protolith.runs.recording import Models, Recorder
from protolith.runs.result import Summary
from protolith.runs.round import Round
from protolith.runs.run import task_of
from protolith.runs.starting import Start, starting_weights
from protolith.runs.stopping import Stopping
from protolith.runs.summary import summarise


class Observer:
    """Who is told how a run goes. Every method may be overridden; none has to be."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Hear that rounds begin, after so many that are done."""

    def round_done(self, done: Round) -> None:
        """Hear what came of a round, which counts from 1."""

    def finished(self, summary: Summary) -> None:
        """Hear the result."""

    def close(self) -> None:
        """Hear that nothing more comes."""


def start(config: RunConfig, out: Path, observer: Observer) -> RunDirectory:
    """Start a new run in a new directory."""
    _refuse_elsewhere(config)
    refuse_absent_device(config)
    refuse_unaccountable(config)
    config = with_weights(config)  # before the images are decoded, which may take minutes
    task = task_of(config, observer.say)
    config = complete_for(config, task)
    Workplace(config, task)  # refuses what cannot work before images are encoded, or anything is written
    workplace = _workplace(config, task, observer)
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
    go_on(directory, config, _workplace(config, task_of(config, observer.say), observer), observer)
    return directory


def _workplace(config: RunConfig, task: Task, observer: Observer) -> Workplace:
    """A workplace with the images, or with what the frozen part of the network makes of them."""
    return Workplace(config, trained_on(config, task, observer.say), pictures=task)


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
    allocation.keep(directory.path, workplace.allocation, workplace.task)
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
            workplace.new_layers(),
        )
        checkpoints = Checkpoints(directory.path / "checkpoint", coordinator.memory_file, coordinator.counts_of)
        if checkpoint := checkpoints.latest(observer.say):
            coordinator.resume(checkpoint.state, checkpoint.progress)
        if lost := directory.keep_metrics_of_first(coordinator.progress.round):
            observer.say(f"metrics.jsonl is damaged: {lost} round(s) are missing from it and from the summary.")
        observer.started(config, directory, coordinator.progress.round, getattr(engine, "actors", workers))
        recorder = Recorder(config, directory, checkpoints, coordinator)
        hooks = _hooks(directory, config, workplace, observer, roster, recorder, sites)
        try:
            rounds.run_rounds(coordinator, hooks)
        except KeyboardInterrupt:
            recorder.checkpoint()
            raise Interrupted(directory.path, recorder.progress.round) from None
    finally:
        engine.close()
    for hook in hooks:
        hook.finished(coordinator)
    _finish(directory, config, workplace, coordinator, began_from, observer)


def _hooks(
    directory: RunDirectory,
    config: RunConfig,
    workplace: Workplace,
    observer: Observer,
    roster: Roster,
    recorder: Recorder,
    sites: Sites | None,
) -> list[Hook]:
    """All that goes along with the rounds, in the order in which it hears of them.

    What a round leaves in files of its own comes before the recorder: a round that has its checkpoint runs no more.
    """
    clients, folder = workplace.allocation, directory.path / FOLDER
    asked: list[tuple[bool, Hook]] = [
        (sites is not None, sites or Hook()),
        (True, Account(config, [client.name for client in clients.clients], sites.releases if sites else {})),
        (config.diagnostics, PrototypeLog(folder, clients, workplace.task.classes, roster)),
        (config.patience > 0, Stopping(config, directory, workplace)),
        (True, Models(config, directory, workplace)),
        (True, recorder),
        (config.diagnostics and sites is None, TestLog(directory.path, workplace, observer.say)),  # sites have images
        (True, _Told(observer)),
    ]
    return [hook for wanted, hook in asked if wanted]


class _Told(Hook):
    """Tells the observer of each round."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        self.observer.round_done(Round.of(metrics))


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


def _finish(
    directory: RunDirectory,
    config: RunConfig,
    workplace: Workplace,
    coordinator: Coordinator,
    began_from: Start,
    observer: Observer,
) -> None:
    summary = summarise(directory, config, workplace, coordinator, began_from)
    directory.write_summary(summary.to_json())
    for sentence in sentences_of(summary):
        observer.say(sentence)
    observer.finished(summary)
