"""Runs in TensorBoard: one small observer, for `--track tensorboard` or the `observer` of `protolith.fit`."""

from typing import Any

from protolith.errors import UserError
from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory
from protolith.runs.result import Summary
from protolith.runs.round import Round
from protolith.runs.runner import Observer

FOLDER = "tensorboard"


class TensorBoard(Observer):
    """Writes every round's numbers to `tensorboard/` in the run's directory, and passes everything on."""

    def __init__(self, others: Observer | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise UserError("TensorBoard is not installed: pip install 'protolith[tensorboard]'.") from None
        self.others = others or Observer()
        self._open: Any = SummaryWriter
        self._writer: Any = None

    def say(self, text: str) -> None:
        """Pass it on."""
        self.others.say(text)

    def started(self, config: RunConfig, directory: RunDirectory, first_round: int, workers: int) -> None:
        """Open the file; of a run that goes on, the rounds that are done again replace the old ones."""
        self._writer = self._open(str(directory.path / FOLDER), purge_step=first_round + 1)
        self.others.started(config, directory, first_round, workers)

    def round_done(self, done: Round) -> None:
        """Write a round."""
        for name, value in scalars(done).items():
            self._writer.add_scalar(name, value, done.round)
        self._writer.flush()
        self.others.round_done(done)

    def finished(self, summary: Summary) -> None:
        """Pass it on."""
        self.others.finished(summary)

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
        self.others.close()


def scalars(done: Round) -> dict[str, float]:
    """The numbers of a round by their names in TensorBoard."""
    mean = f"mean of {len(done.accuracy)} site(s)" if done.untested else "mean"
    found = {f"accuracy/{mean}": done.mean} if done.mean is not None else {}
    for group, values in (("accuracy", done.accuracy), ("loss", done.loss), ("seconds", done.seconds)):
        found |= {f"{group}/{name}": value for name, value in values.items()}
    found |= {"bytes/down": done.bytes_down, "bytes/up": done.bytes_up}
    return found | {"rejected": len(done.rejected)}
