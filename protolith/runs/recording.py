"""What is written while rounds go by: lines of metrics, checkpoints, models; each is a hook."""

import time
from pathlib import Path

from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.hooks import Hook
from protolith.federation.local_update import Workplace
from protolith.models.saved import write_model
from protolith.runs.checkpoints import Checkpoints
from protolith.runs.config import RunConfig
from protolith.runs.directory import MODEL, RunDirectory
from protolith.runs.round import Round


class Recorder(Hook):
    """Writes a line of metrics for each round, and checkpoints.

    A round's line comes before its checkpoint, so that no checkpoint is ahead of the metrics; the time that a
    checkpoint takes is therefore found in the next round's line.
    """

    def __init__(
        self, config: RunConfig, directory: RunDirectory, checkpoints: Checkpoints, coordinator: Coordinator
    ) -> None:
        self.config = config
        self.directory = directory
        self.checkpoints = checkpoints
        self.state, self.progress = coordinator.state(), coordinator.progress.copy()  # of the last complete round
        self.written = self.progress.round
        self.writing = 0.0
        self.last = time.perf_counter()

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Write what came of a round."""
        now = time.perf_counter()
        metrics["seconds"] |= {"checkpoint": self.writing, "total": now - self.last}
        self.last, self.writing = now, 0.0
        self.directory.append_metrics(Round.of(metrics).to_json())
        self.state, self.progress = coordinator.state(), coordinator.progress.copy()
        if self.progress.round % self.config.checkpoint_every == 0 or coordinator.over:
            self.checkpoint()
            self.writing = time.perf_counter() - now

    def checkpoint(self) -> None:
        """Write the last complete round down, if it is not yet; one that was under way is lost."""
        if self.progress.round > self.written:
            self.checkpoints.write(self.state, self.progress)
            self.written = self.progress.round


class Models(Hook):
    """Writes the models: the global one where a run keeps it and in the end, and then the aggregated clients' own.

    Those of clients after training are written by then, by the engine.
    """

    def __init__(self, config: RunConfig, directory: RunDirectory, workplace: Workplace) -> None:
        self.config = config
        self.directory = directory
        self.workplace = workplace

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Keep the model of a round."""
        if metrics["round"] in self.config.keep_models:
            self._write_global(self.directory.models / f"round-{metrics['round']:06d}.safetensors", coordinator)

    def finished(self, coordinator: Coordinator) -> None:
        """Write what the run came to."""
        self._write_global(self.directory.path / MODEL, coordinator)
        if coordinator.tested == "aggregated":
            for client in sorted(coordinator.progress.memories):
                record = coordinator.own_weights(client)
                write_model(coordinator.model_file(client), record, self.workplace.about_model())

    def _write_global(self, path: Path, coordinator: Coordinator) -> None:
        """Write the global model and what the server knows besides, where there is such a model."""
        if coordinator.server.evaluates == "global":
            weights = self.workplace.whole(coordinator.server.weights)
            write_model(path, weights, self.workplace.about_model(), coordinator.knowledge())
