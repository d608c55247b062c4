"""Early stopping: when the clients' validation images say that nothing gets better. Test images have no say in it."""

from collections.abc import Sequence
from pathlib import Path

from protolith import records
from protolith.errors import UserError
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.hooks import Hook
from protolith.federation.local_update import Workplace
from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round

BEST = "best.safetensors"


def refuse_unsuitable(config: RunConfig, tested: str) -> None:
    """Refuse a run that could never be stopped, before anything is written."""
    if config.patience and not config.protocol.validation:
        raise UserError("patience needs validation images: set protocol.validation to the part of them, such as 0.2.")
    if config.protocol.validation and (tested != "global" or config.protocol.pool):
        raise UserError("protocol.validation is for runs whose global model is tested, and this one has none.")


def best_round(lines: Sequence[Round]) -> Round | None:
    """The round with the highest mean validation accuracy; the first of several."""
    measured = [(line.validation, line) for line in lines if line.validation is not None]
    return max(measured, key=lambda pair: pair[0], default=(0.0, None))[1]  # max takes the first


class Stopping(Hook):
    """Keeps the model of the best round, and says when to stop."""

    def __init__(self, config: RunConfig, directory: RunDirectory, workplace: Workplace) -> None:
        self.patience = config.patience
        self.workplace = workplace
        self.file: Path = directory.path / BEST
        self.lines = directory.metrics()

    def started(self, coordinator: Coordinator) -> None:
        """Stop a run at once that had stopped before it was killed."""
        if self.now:
            coordinator.stop()

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Take in a round; the best model so far is written before the round counts as done."""
        if not self.patience:
            return
        self.lines.append(done := Round.of(metrics))
        if best_round(self.lines) is done:
            records.write(self.file, coordinator.state(), about=self.workplace.about_model(), sync=True)
        if self.now:
            coordinator.stop()

    @property
    def now(self) -> bool:
        """Tell whether enough rounds have brought nothing better."""
        best = best_round(self.lines) if self.patience else None
        return best is not None and self.lines[-1].round - best.round >= self.patience

    def finished(self, coordinator: Coordinator) -> None:
        """Go back to the best model: it is the one that is saved and reported."""
        if self.patience and self.file.exists():
            # Files of earlier versions lack what does not go to clients; what is there of it is the last round's then.
            own = {name: held for name, held in coordinator.state().items() if name.startswith(("extra/", "layers/"))}
            coordinator.load_state({**own, **records.clone(records.read(self.file))})
