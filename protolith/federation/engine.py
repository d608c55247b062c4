"""What the server loop asks of an engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protolith.evaluation.measures import Counts
from protolith.records import Broadcast, Record, Upload


@dataclass(frozen=True)
class Job:
    """One client's work in one round. Memory is read from one file and written to another."""

    client: int
    name: str
    round: int
    size: int
    memory_in: Path | None
    memory_out: Path
    evaluate: bool
    model_out: Path | None = None  # where to write the model as training left it


@dataclass(frozen=True)
class Result:
    """What came of a job."""

    upload: Upload
    remembered: bool


class Engine(Protocol):
    """A place where clients' work is executed."""

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """Execute the jobs in any order, and hand the results over in the order of the jobs."""
        ...

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """Test weights on every test set: the counts of every measure by the test set's name."""
        ...

    def close(self) -> None:
        """Give everything back."""
        ...
