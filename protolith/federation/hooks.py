"""What goes along with the rounds: hooks, and the engine at real sites, which is one of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

from protolith.evaluation.measures import Counts
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.engine import Job, Result
from protolith.records import Broadcast, Record, Upload


class Hook:
    """Something that goes along with the rounds. Every method may be overridden; none has to be."""

    def started(self, coordinator: Coordinator) -> None:
        """Hear that rounds begin, or go on."""

    def sent(self, round_: int, upload: Upload) -> None:
        """Hear an accepted upload of a round; the first round is 0."""

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Hear what came of a round, which counts from 1; what a hook adds to it the hooks after it see."""

    def finished(self, coordinator: Coordinator) -> None:
        """Hear that there are no more rounds; the engine is closed by then."""


class Sites(Hook, ABC):
    """An engine whose workers are real sites, which may be away; it goes along with the rounds to look ahead."""

    releases: dict[str, int]  # client -> how often its site has sent prototypes with noise, as it says

    @abstractmethod
    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """As every engine (engine.py)."""

    @abstractmethod
    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """As every engine."""

    @abstractmethod
    def close(self) -> None:
        """As every engine."""
