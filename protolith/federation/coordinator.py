"""The server loop: one round after the other, whatever the engine."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from protolith.data.protocols import Allocation, participants
from protolith.errors import RunFailed
from protolith.evaluation.accuracy import domain_means, mean, own_and_across
from protolith.federation.engine import Engine, Job, Result
from protolith.federation.guards import Guard
from protolith.federation.setup import Setup
from protolith.methods.fedavg import Server
from protolith.records import Broadcast, Upload

Metrics = dict[str, Any]


@dataclass
class Progress:
    """What lasts from round to round besides the server's own state."""

    round: int = 0  # the next round
    memories: dict[int, int] = field(default_factory=dict)  # client -> round that wrote its memory
    own_accuracy: dict[int, dict[str, float]] = field(default_factory=dict)  # client -> test set -> per cent

    def copy(self) -> "Progress":
        """Copy it, so that a round under way does not change what a checkpoint says."""
        return Progress(self.round, dict(self.memories), dict(self.own_accuracy))


@dataclass
class _Tally:
    """What is counted while broadcasts go out (from several threads) and uploads stream in."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes_down: int = 0
    bytes_up: int = 0
    rejected: list[dict[str, str]] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)
    images: int = 0

    def add_losses(self, upload: Upload) -> None:
        self.images += upload.count
        for name, value in upload.metrics.items():
            if not name.startswith("accuracy/"):
                self.losses[name] = self.losses.get(name, 0.0) + value * upload.count

    def mean_losses(self) -> dict[str, float]:
        return {name: total / self.images for name, total in self.losses.items()}


class Coordinator:
    """Runs rounds: broadcast, train, check, aggregate, evaluate."""

    def __init__(
        self,
        setup: Setup,
        allocation: Allocation,
        server: Server,
        engine: Engine,
        memory: Path,
        evaluate_every: int = 1,
    ) -> None:
        self.setup = setup
        self.allocation = allocation
        self.server = server
        self.engine = engine
        self.memory = memory
        self.evaluate_every = evaluate_every
        self.progress = Progress()
        self.domains = {client.id: client.domain for client in allocation.clients}
        # In protocol `local` the papers test every client's own model after training, whatever the method.
        self.evaluates = "clients" if setup.protocol.name == "local" else server.evaluates

    def memory_file(self, client: int, round_: int) -> Path:
        """Where a client's memory of a round is kept."""
        return self.memory / f"client-{client:05d}-round-{round_:06d}.safetensors"

    def evaluates_in(self, round_: int) -> bool:
        """Tell whether a round is tested: every so often, and the last five always."""
        return round_ % self.evaluate_every == 0 or round_ >= self.setup.rounds - 5

    def run_round(self) -> Metrics:
        """Run the next round and describe it as a line of metrics."""
        round_ = self.progress.round
        began = time.perf_counter()
        chosen, dropped = participants(len(self.allocation.clients), self.setup.protocol, self.setup.seed, round_)
        tally = _Tally()
        self.server.round = round_
        self._train(chosen, round_, tally)
        trained = time.perf_counter()
        accuracy = self._accuracy() if self.evaluates_in(round_) else {}
        done = time.perf_counter()
        self.progress.round = round_ + 1
        return {
            "round": round_,
            **accuracy,
            "loss": tally.mean_losses(),
            "bytes_down": tally.bytes_down,
            "bytes_up": tally.bytes_up,
            "clients": len(chosen),
            "dropped": [self.allocation.clients[client].name for client in dropped],
            "rejected": tally.rejected,
            "seconds": {"train": trained - began, "evaluate": done - trained},
        }

    def _train(self, chosen: list[int], round_: int, tally: _Tally) -> None:
        def broadcast(client: int) -> Broadcast:
            message = self.server.broadcast(client)
            with tally.lock:
                tally.bytes_down += message.nbytes
            return message

        jobs = [self._job(client, round_) for client in chosen]
        uploads = self._accepted(self.engine.train(jobs, broadcast), Guard(self.server), round_, tally)
        first = next(uploads, None)
        if first is not None:
            self.server.aggregate(chain([first], uploads))
        elif tally.rejected:
            worst = tally.rejected[0]
            raise RunFailed(f"every upload of round {round_} was rejected; {worst['client']}: {worst['reason']}.")

    def _job(self, client: int, round_: int) -> Job:
        spec = self.allocation.clients[client]
        wrote = self.progress.memories.get(client)
        return Job(
            client=client,
            name=spec.name,
            round=round_,
            size=len(spec.rows),
            memory_in=None if wrote is None else self.memory_file(client, wrote),
            memory_out=self.memory_file(client, round_),
            evaluate=self.evaluates == "clients" and self.evaluates_in(round_),
        )

    def _accepted(self, results: Iterator[Result], guard: Guard, round_: int, tally: _Tally) -> Iterator[Upload]:
        """Pass on what the guard accepts; count and name the rest."""
        for result in results:
            upload = result.upload
            tally.bytes_up += upload.nbytes
            if reason := guard.problem(upload):
                tally.rejected.append({"client": self.allocation.clients[upload.client].name, "reason": reason})
                continue
            if result.remembered:  # a rejected round leaves no trace: the client goes on from its last good memory
                self.progress.memories[upload.client] = round_
            tally.add_losses(upload)
            own = {
                name.removeprefix("accuracy/"): v for name, v in upload.metrics.items() if name.startswith("accuracy/")
            }
            if own:
                self.progress.own_accuracy[upload.client] = own
            yield upload

    def _accuracy(self) -> Metrics:
        if self.evaluates == "clients":
            own, across = own_and_across(self.allocation.tests, self.domains, self.progress.own_accuracy)
            return {"accuracy": own, "mean": mean(own), "across": across} if own else {}
        by_test = self.engine.evaluate(self.server.weights, self.server.knowledge)
        accuracy = domain_means(self.allocation.tests, by_test)
        return {"accuracy": accuracy, "mean": mean(accuracy)}
