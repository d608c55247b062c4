"""Actors of a Ray cluster, one core each; whatever dies is replaced and its job run again."""

import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from protolith import records
from protolith.data.domain import Task
from protolith.data.protocols import TestSet
from protolith.engines.messages import refuse_hopeless
from protolith.engines.ray.place import Answer, RayPlace, task_arrays, to_arrays, to_record
from protolith.errors import RunFailed, UserError
from protolith.evaluation.accuracy import by_test, chunks
from protolith.evaluation.measures import Counts, from_plain, measures_of
from protolith.federation.engine import Job, Result
from protolith.federation.setup import Setup
from protolith.models.saved import write_model
from protolith.records import Broadcast, Record, Upload

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone
try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise UserError("Ray is not installed: pip install 'protolith[ray]'.") from None

ATTEMPTS = 3  # of a job that fails
LOSSES = 10  # of actors while they did the same job
AHEAD = 4  # answers for each actor that may wait for their turn
EACH = 2  # jobs that wait at an actor, so that it never waits for the driver
PATIENCE = 300.0  # seconds without any answer and without an actor that is alive


@dataclass
class _Work:
    """A job for an actor: which function, and how its arguments are made when its turn comes."""

    who: str
    function: str
    arguments: Callable[[], Sequence[Any]]
    faults: int = 0
    losses: int = 0


class RayEngine:
    """Executes jobs in actors; results come in the order of the jobs."""

    def __init__(
        self, setup: Setup, task: Task, tests: Sequence[TestSet], actors: int, most: int, address: str
    ) -> None:
        self.tests = tests
        self.measures, self.classes = measures_of(setup.measures), len(task.classes)
        self._started = not ray.is_initialized()
        if self._started:
            _connect(address)
        settings = setup.model_dump(mode="json", include=set(Setup.model_fields))
        named = (task.name, list(task.classes), [domain.name for domain in task.domains])
        arrays = ray.put(task_arrays(task))  # once; every machine of the cluster then has one copy
        remote = ray.remote(num_cpus=1)(RayPlace)
        self._make: Callable[[], Any] = lambda: remote.remote(settings, named, arrays)
        self._shared: dict[int, tuple[Record, Any]] = {}
        self._starting: dict[Any, Any] = {}  # promise to be ready -> actor
        self._load: dict[Any, int] = {}  # actor that is alive -> jobs that it has
        self._running: dict[Any, tuple[Any, int]] = {}  # promise -> actor, number of the work
        self.actors = actors if actors > 0 else min(most, int(ray.cluster_resources().get("CPU", 1)))
        for _ in range(self.actors):
            self._start_actor()

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """Hand results over in the order of the jobs."""
        work = [
            _Work(f"client {job.name}", "train", lambda job=job: self._arguments(job, broadcast))  # type: ignore[misc]
            for job in jobs
        ]
        try:
            for job, answer in zip(jobs, self._in_order(work), strict=True):
                yield self._result(job, answer)
        finally:
            self._shared.clear()

    def _arguments(self, job: Job, broadcast: Callable[[int], Broadcast]) -> Sequence[Any]:
        message = broadcast(job.client)
        memory = to_arrays(records.read(job.memory_in)) if job.memory_in else {}
        what = {"client": job.client, "round": job.round, "evaluate": job.evaluate, "model": bool(job.model_out)}
        return what, self._share(message.weights), to_arrays(message.knowledge), memory

    def _result(self, job: Job, answer: Answer) -> Result:
        """Write what the client keeps; it is the driver that has the run's directory."""
        if answer["memory"]:
            records.write(job.memory_out, to_record(answer["memory"]))
        if job.model_out:
            write_model(job.model_out, to_record(answer["model"]), answer["about"])
        weights, knowledge = to_record(answer["weights"]), to_record(answer["knowledge"])
        sizes = {test.name: len(test.rows) for test in self.tests}
        counts = {name: self._counts(values, sizes[name]) for name, values in answer["tested"].items()}
        upload = Upload(job.client, answer["count"], weights, knowledge, answer["metrics"], counts)
        return Result(upload, bool(answer["memory"]))

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """Test weights on every test set, in chunks."""
        pieces = chunks(self.tests)
        work = [
            _Work(
                "the evaluation",
                "evaluate",
                lambda piece=piece: (  # type: ignore[misc]
                    (piece.test, piece.start, piece.stop),
                    self._share(weights),
                    self._share(knowledge),
                ),
            )
            for piece in pieces
        ]
        done = zip(pieces, self._in_order(work), strict=True)
        counts = (self._counts(answer["counts"], piece.stop - piece.start) for piece, answer in done)
        found = by_test(self.tests, pieces, counts)
        self._shared.clear()
        return found

    def _counts(self, values: Any, images: int) -> Counts:
        return from_plain(values, self.measures, self.classes, images)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here."""
        for actor in [*self._load, *self._starting.values()]:
            ray.kill(actor)
        if self._started:
            ray.shutdown()

    def _in_order(self, work: Sequence[_Work]) -> Iterator[Answer]:
        """Do all of it on whatever actors there are; answers wait until it is their turn."""
        waiting = list(range(len(work)))  # a heap: what is needed first comes first
        done: dict[int, Answer] = {}
        for number in range(len(work)):
            while number not in done:
                while waiting and (actor := self._free_actor()) is not None:
                    if waiting[0] != number and len(done) >= AHEAD * self.actors:
                        break
                    self._hand_over(actor, heappop(waiting), work)
                self._collect(work, waiting, done)
            yield done.pop(number)

    def _free_actor(self) -> Any:
        free = [actor for actor, jobs in self._load.items() if jobs < EACH]
        return min(free, key=lambda actor: self._load[actor]) if free else None

    def _hand_over(self, actor: Any, number: int, work: Sequence[_Work]) -> None:
        arguments = work[number].arguments()
        self._running[getattr(actor, work[number].function).remote(*arguments)] = actor, number
        self._load[actor] += 1

    def _collect(self, work: Sequence[_Work], waiting: list[int], done: dict[int, Answer]) -> None:
        """Take in one answer, one actor that has become ready, or one that is lost."""
        promises = [*self._running, *self._starting]
        ready, _ = ray.wait(promises, num_returns=1, timeout=None if self._load else PATIENCE)
        if not ready:
            raise RunFailed(f"no actor of the Ray cluster became ready within {PATIENCE:.0f} s: is a core free?")
        promise = ready[0]
        if promise in self._starting:
            self._welcome(promise)
            return
        actor, number = self._running.pop(promise)
        try:
            answer = ray.get(promise)
        except RayTaskError:
            raise
        except RayError as error:
            work[number].losses += 1
            if work[number].losses >= LOSSES:
                raise RunFailed(f"{work[number].who}: {LOSSES} actors were lost while they did it: {error}") from None
            heappush(waiting, number)
            self._lose(actor)
            return
        if actor in self._load:
            self._load[actor] -= 1
        if answer["ok"]:
            done[number] = answer
            return
        refuse_hopeless(answer, "a machine of the Ray cluster says: ")
        work[number].faults += 1
        print(answer["trace"], file=sys.stderr)
        if work[number].faults >= ATTEMPTS:
            raise RunFailed(f"{work[number].who} failed {ATTEMPTS} times: {answer['error']}.")
        heappush(waiting, number)

    def _start_actor(self) -> None:
        actor = self._make()
        self._starting[actor.ready.remote()] = actor

    def _welcome(self, promise: Any) -> None:
        """An actor is ready, or could not be started."""
        actor = self._starting.pop(promise)
        try:
            ray.get(promise)
        except RayTaskError as error:
            kind = UserError if isinstance(error.cause, UserError) else RunFailed
            raise kind(f"an actor of the Ray cluster could not start: {error.cause}") from None
        except RayError:
            self._start_actor()
            return
        self._load[actor] = 0

    def _lose(self, actor: Any) -> None:
        """Forget an actor; another one takes its place as soon as the cluster has a core for it."""
        if self._load.pop(actor, None) is not None:
            ray.kill(actor)
            self._start_actor()

    def _share(self, record: Record) -> Any:
        """Put a record that several jobs need into shared memory once."""
        if id(record) not in self._shared:
            self._shared[id(record)] = (record, ray.put(to_arrays(record)))
        return self._shared[id(record)][1]


def _connect(address: str) -> None:
    """Join a cluster, or start one on this machine."""
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    address = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.rpartition(":")
    try:
        if port.isdigit() and "//" not in address:  # Ray itself would try for a quarter of an hour
            socket.create_connection((host, int(port)), timeout=10).close()
        # "local" and not nothing: without it Ray looks for the last cluster of this machine, and when that was
        # killed it waits for minutes for what is not there.
        ray.init(address=address, **quiet) if address else ray.init("local", include_dashboard=False, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"address = '{address}': no Ray cluster answers there ({reason}).") from None
