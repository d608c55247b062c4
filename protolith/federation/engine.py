"""What the server loop asks of an engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from protolith.evaluation.measures import Counts
from protolith.records import Broadcast, Record, Upload

if TYPE_CHECKING:
    from protolith.federation.coordinator import Coordinator


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


@runtime_checkable
class Sites(Engine, Protocol):
    """An engine whose workers are real sites, which may be away."""

    releases: dict[str, int]  # client -> how often its site has sent prototypes with noise, as it says

    def look_ahead(self, coordinator: "Coordinator") -> None:
        """Learn from the coordinator what comes next."""
        ...

    def events(self) -> dict[str, Any]:
        """Tell what happened in the last round besides its numbers."""
        ...
