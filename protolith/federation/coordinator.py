"""The server loop: one round after the other, whatever the engine."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from protolith import records
from protolith.attacks import absent
from protolith.data.protocols import Allocation, participants, partition_of
from protolith.errors import RunFailed, UserError
from protolith.evaluation.accuracy import domain_means, mean, of_clients, of_global, own_and_across
from protolith.evaluation.cross import client_matrix, cross_domain
from protolith.evaluation.measures import ACCURACY, Counts, from_plain, measures_of, results
from protolith.evaluation.tested import Tested
from protolith.federation.engine import Engine, Job, Result
from protolith.federation.guards import Guard
from protolith.federation.screening import Flag, Screen
from protolith.federation.setup import Setup
from protolith.files import file_name
from protolith.methods.fedavg import Server
from protolith.records import Broadcast, Record, Upload, under_prefix

Metrics = dict[str, Any]
LAST = 5  # the rounds that make the result, as in all four papers


@dataclass
class Progress:
    """What lasts from round to round besides the server's own state."""

    round: int = 0  # how many are done
    memories: dict[int, int] = field(default_factory=dict)  # client -> the round, from 1, that wrote its memory
    own: dict[int, dict[str, Counts]] = field(default_factory=dict)  # client -> test set -> counts of its own model
    strikes: dict[int, int] = field(default_factory=dict)  # client -> uploads rejected in a row

    def copy(self) -> "Progress":
        """Copy it, so that a round under way does not change what a checkpoint says."""
        return Progress(self.round, dict(self.memories), dict(self.own), dict(self.strikes))


@dataclass
class _Tally:
    """What is counted while broadcasts go out (from several threads) and uploads stream in."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    bytes_down: int = 0
    bytes_up: int = 0
    rejected: list[dict[str, str]] = field(default_factory=list)
    flagged: list[Metrics] = field(default_factory=list)
    losses: dict[str, float] = field(default_factory=dict)  # sums over the images of the clients that have the term
    behind: dict[str, int] = field(default_factory=dict)  # how many images these are
    images: int = 0

    def add_losses(self, upload: Upload) -> None:
        self.images += upload.count
        for name, value in upload.metrics.items():
            self.losses[name] = self.losses.get(name, 0.0) + value * upload.count
            self.behind[name] = self.behind.get(name, 0) + upload.count

    def mean_losses(self) -> dict[str, float]:
        return {name: total / self.behind[name] for name, total in self.losses.items()}


def _each(first: list[Upload], others: Iterator[Upload]) -> Iterator[Upload]:
    """One upload after the other, none held here once it has been handed over."""
    yield first.pop()
    yield from others


def which_models(setup: Setup, server: Server | type[Server]) -> Tested:
    """Settle which models are tested. On the clients' own images it is their own models, as FedCode has it."""
    if setup.tested == "auto":
        own = partition_of(setup.protocol).own or server.evaluates == "clients"
        return Tested.TRAINED if own else Tested.GLOBAL
    if setup.tested == "global" and server.evaluates == "clients":
        raise UserError(f"tested = 'global': {setup.method} has no global model.")
    return Tested(setup.tested)


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
        models: Path | None = None,
    ) -> None:
        self.setup = setup
        self.allocation = allocation
        self.server = server
        self.engine = engine
        self.memory = memory
        self.models = models
        self.evaluate_every = evaluate_every
        self.listen: Callable[[int, Upload], None] | None = None  # who hears the round and each accepted upload
        self.progress = Progress()
        self.domains = {client.id: client.domain for client in allocation.clients}
        self.measures = measures_of(setup.measures)
        self.tested = which_models(setup, server)
        self.last_rounds = self._last_rounds() if models and self.tested == "trained" else {}

    def tested_domains(self) -> list[str]:
        """The domains of all test sets."""
        return list(dict.fromkeys(test.domain for test in self.allocation.tests))

    def memory_file(self, client: int, round_: int) -> Path:
        """Where a client's memory of a round, counted from 1, is kept."""
        return self.memory / f"client-{client:05d}-round-{round_:06d}.safetensors"

    def counts_of(self, test: str, said: Any) -> Counts:
        """Read what a checkpoint says of a client's own model on a test set; old ones say per cent."""
        found = {known.name: len(known.rows) for known in self.allocation.tests}
        if test not in found:
            raise ValueError(f"it speaks of a test set '{test}' that this run has not")
        images = found[test]
        if isinstance(said, float):
            said = {ACCURACY: {"correct": round(said * images / 100.0), "images": images}}
        return from_plain(said, self.measures, self.server.roster.classes, images)

    def _last_rounds(self) -> dict[int, int]:
        """In which round each client takes part for the last time, and leaves its model behind."""
        found: dict[int, int] = {}
        for round_ in reversed(range(self.setup.rounds)):
            chosen, _ = self.participants(round_)
            found = {**dict.fromkeys(chosen, round_), **found}
            if len(found) == len(self.allocation.clients):
                break
        return found

    def participants(self, round_: int) -> tuple[list[int], list[int]]:
        """Who takes part in a round as things stand, and who was chosen but fails."""
        everyone = len(self.allocation.clients)
        chosen, dropped = participants(everyone, self.setup.protocol, self.setup.seed, round_)
        away = absent(self.setup.attack, everyone, self.setup.seed, round_)
        out = self.sitting_out()
        dropped = sorted([*dropped, *(client for client in chosen if client in away)])
        return [c for c in chosen if c not in away and c not in out], [c for c in dropped if c not in out]

    def sitting_out(self) -> set[int]:
        """The clients whose uploads were rejected too often in a row: they take part no more."""
        most = self.setup.guard.strikes
        return {client for client, strikes in self.progress.strikes.items() if most and strikes >= most}

    def _names(self, clients: Iterable[int]) -> list[str]:
        return [self.allocation.clients[client].name for client in sorted(clients)]

    def model_file(self, client: int) -> Path:
        """Where a client's own model is kept."""
        assert self.models is not None
        self.models.mkdir(exist_ok=True)
        return self.models / f"{file_name(self.allocation.clients[client].name)}.safetensors"

    def counts_in_the_end(self, round_: int) -> bool:
        """Tell whether a round is one of those that make the result."""
        return round_ >= self.setup.rounds - LAST

    def evaluates_in(self, round_: int) -> bool:
        """Tell whether a round is tested: every so often, and the last ones always."""
        return round_ % self.evaluate_every == 0 or self.counts_in_the_end(round_)

    def run_round(self) -> Metrics:
        """Run the next round and describe it as a line of metrics."""
        round_ = self.progress.round
        began = time.perf_counter()
        chosen, dropped = self.participants(round_)
        out = self.sitting_out()
        if len(out) == len(self.allocation.clients):
            raise RunFailed(f"all clients sit out: the last {self.setup.guard.strikes} uploads of each were rejected.")
        tally = _Tally()
        self.server.round = round_
        self._train(chosen, round_, tally)
        trained = time.perf_counter()
        accuracy = self._accuracy() if self.evaluates_in(round_) else {}
        done = time.perf_counter()
        self.progress.round = round_ + 1
        return {
            "round": round_ + 1,
            **accuracy,
            "loss": tally.mean_losses(),
            "bytes_down": tally.bytes_down,
            "bytes_up": tally.bytes_up,
            "clients": len(chosen),
            "images": tally.images,
            "dropped": self._names(dropped),
            "rejected": tally.rejected,
            "flagged": tally.flagged,
            "sitting_out": self._names(out),
            "seconds": {"train": trained - began, "evaluate": done - trained},
        }

    def _train(self, chosen: list[int], round_: int, tally: _Tally) -> None:
        def broadcast(client: int) -> Broadcast:
            message = self.server.broadcast(client)
            with tally.lock:
                tally.bytes_down += message.nbytes
            return message

        jobs = [self._job(client, round_) for client in chosen]
        screen = Screen(self.setup.guard, self.server.origin())
        guard = Guard(self.server, chosen)
        sound = self._sound(self.engine.train(jobs, broadcast), guard, screen, tally)
        if screen.settings.norm != "flag":
            sound = self._screened(list(sound), screen, tally)
        uploads = self._accepted(sound, round_, tally)
        first = list(islice(uploads, 1))
        some = bool(first)
        if some:
            self.server.aggregate(_each(first, uploads))
        tally.flagged = [self._described(flag) for flag in screen.flags()]
        if not some and tally.rejected:
            worst = tally.rejected[0]
            raise RunFailed(f"every upload of round {round_ + 1} was rejected; {worst['client']}: {worst['reason']}.")

    def _job(self, client: int, round_: int) -> Job:
        spec = self.allocation.clients[client]
        wrote = self.progress.memories.get(client)
        return Job(
            client=client,
            name=spec.name,
            round=round_,
            size=len(spec.rows),
            memory_in=None if wrote is None else self.memory_file(client, wrote),
            memory_out=self.memory_file(client, round_ + 1),
            evaluate=self.tested == "trained" and self.evaluates_in(round_),
            model_out=self.model_file(client) if self.last_rounds.get(client) == round_ else None,
        )

    def _sound(self, results: Iterable[Result], guard: Guard, screen: Screen, tally: _Tally) -> Iterator[Result]:
        """Pass on what fits the schema, and take down its norms; count and name the rest."""
        for result in results:
            tally.bytes_up += result.upload.nbytes
            if reason := guard.problem(result.upload):
                self._reject(result.upload.client, reason, tally)
                continue
            screen.measure(result.upload)
            yield result
            del result  # before the next one comes, so that memory holds one

    def _screened(self, results: list[Result], screen: Screen, tally: _Tally) -> Iterator[Result]:
        """Clip or drop what is far beyond the others."""
        flags = screen.flags()
        for result in results:
            mine = [flag for flag in flags if flag.client == result.upload.client]
            if mine and screen.settings.norm == "drop":
                self._reject(result.upload.client, f"the norm of its {mine[0].what} has z = {mine[0].z:.1f}", tally)
            else:
                yield replace(result, upload=screen.clip(result.upload, mine)) if mine else result

    def _reject(self, client: int, reason: str, tally: _Tally) -> None:
        known = type(client) is int and 0 <= client < len(self.allocation.clients)
        if known:
            self.progress.strikes[client] = self.progress.strikes.get(client, 0) + 1
        name = self.allocation.clients[client].name if known else "a stranger"
        tally.rejected.append({"client": name, "reason": reason})

    def _described(self, flag: Flag) -> Metrics:
        return {"client": self.allocation.clients[flag.client].name, "what": flag.what, "z": round(flag.z, 2)}

    def _accepted(self, results: Iterable[Result], round_: int, tally: _Tally) -> Iterator[Upload]:
        """Take note of what is accepted, and pass it on."""
        for result in results:
            upload = result.upload
            self.progress.strikes.pop(upload.client, None)
            if result.remembered:  # a rejected round leaves no trace: the client goes on from its last good memory
                self.progress.memories[upload.client] = round_ + 1
            tally.add_losses(upload)
            if upload.counts:
                self.progress.own[upload.client] = upload.counts
            if self.listen:
                self.listen(round_, upload)
            del result  # whoever takes the upload is to be the only one who holds it
            yield upload
            del upload

    def _accuracy(self) -> Metrics:
        if self.tested == "global":
            counts = self.engine.evaluate(self.server.weights, self.server.knowledge)
            found = of_global(self.measures, self.allocation.tests, counts)
            if self.allocation.validation:
                held_out = results(self.measures[0], counts)
                found["validation"] = mean(domain_means(self.allocation.validation, held_out))
            return found
        if self.tested == "aggregated":
            self._test_aggregated()
        return self._accuracy_of_clients()

    def _test_aggregated(self) -> None:
        for client in sorted(self.progress.memories):
            knowledge = self.server.broadcast(client).knowledge
            self.progress.own[client] = self.engine.evaluate(self.own_weights(client), knowledge)

    def own_weights(self, client: int) -> Record:
        """What the server has for a client, with the tensors that the client keeps for itself."""
        own = records.read(self.memory_file(client, self.progress.memories[client]))
        return {**self.server.broadcast(client).weights, **under_prefix("own", own)}

    def _accuracy_of_clients(self) -> Metrics:
        tests = self.allocation.tests
        metrics = of_clients(self.measures, tests, self.domains, self.progress.own)
        if not metrics:
            return {}
        found = {client: results(self.measures[0], own) for client, own in self.progress.own.items()}
        metrics["across"] = own_and_across(tests, self.domains, found)[1]
        if arranged := client_matrix(tests, list(self.domains.values()), found):
            matrix, rows = arranged
            metrics["cross"] = cross_domain(matrix, rows, list(self.domains.values())).as_metrics()
            if self.counts_in_the_end(self.progress.round):
                names = [client.name for client in self.allocation.clients]
                metrics["matrix"] = {names[row]: values for row, values in zip(rows, matrix.tolist(), strict=True)}
        return metrics
