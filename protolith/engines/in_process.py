"""Everything in the calling process, one job after the other: for debugging, and what other engines must equal."""

from collections.abc import Callable, Iterator, Sequence

from protolith import records
from protolith.evaluation.accuracy import by_test, chunks
from protolith.evaluation.measures import Counts
from protolith.federation.engine import Job, Result
from protolith.federation.local_update import Workplace
from protolith.records import Broadcast, Record


class InProcessEngine:
    """Executes jobs where it is called."""

    def __init__(self, workplace: Workplace) -> None:
        self.workplace = workplace

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """Execute the jobs in order."""
        for job in jobs:
            memory = records.read(job.memory_in) if job.memory_in else {}
            upload, remembered = self.workplace.update(
                job.client, job.round, broadcast(job.client), memory, job.evaluate
            )
            if remembered:
                records.write(job.memory_out, remembered)
            if job.model_out:
                self.workplace.write_model(job.model_out)
            yield Result(upload, bool(remembered))

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """Test weights on every test set."""
        tests = self.workplace.allocation.measured
        pieces = chunks(tests)
        return by_test(tests, pieces, (self.workplace.count(weights, knowledge, piece) for piece in pieces))

    def close(self) -> None:
        """Nothing to give back."""
