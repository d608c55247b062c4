"""What the rounds of a run are made of: who takes part, with which files, and what is tested."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolith import records
from protolith.data.protocols import Allocation, participants, partition_of
from protolith.errors import UserError
from protolith.evaluation.accuracy import domain_means, mean, of_clients, of_global, own_and_across
from protolith.evaluation.cross import client_matrix, cross_domain
from protolith.evaluation.measures import ACCURACY, Counts, from_plain, measures_of, results
from protolith.evaluation.tested import Tested
from protolith.federation.engine import Engine, Job
from protolith.federation.layers.base import Layers
from protolith.federation.layers.styles import BEFORE
from protolith.federation.setup import Setup
from protolith.files import file_name
from protolith.methods.fedavg import Server
from protolith.methods.shown import Shown
from protolith.records import Broadcast, Record, Upload, under_prefix, with_prefix

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


def which_models(setup: Setup, server: Server | type[Server]) -> Tested:
    """Settle which models are tested. On the clients' own images it is their own models, as FedCode has it."""
    if setup.tested == "auto":
        own = partition_of(setup.protocol).own or server.evaluates == "clients"
        return Tested.TRAINED if own else Tested.GLOBAL
    if setup.tested == "global" and server.evaluates == "clients":
        raise UserError(f"tested = 'global': {setup.method} has no global model.")
    return Tested(setup.tested)


class Coordinator:
    """Knows a run's clients, server, layers and engine, and how far it is; `rounds.py` has the loop."""

    def __init__(
        self,
        setup: Setup,
        allocation: Allocation,
        server: Server,
        engine: Engine,
        memory: Path,
        evaluate_every: int = 1,
        models: Path | None = None,
        layers: Layers | None = None,
    ) -> None:
        self.setup = setup
        self.allocation = allocation
        self.server = server
        self.layers = layers or Layers()
        self.engine = engine
        self.memory = memory
        self.models = models
        self.evaluate_every = evaluate_every
        self.progress = Progress()
        self._stopped = False
        self.domains = {client.id: client.domain for client in allocation.clients}
        self.measures = measures_of(setup.measures)
        self.tested = which_models(setup, server)
        self.last_rounds = self._last_rounds() if models and self.tested == "trained" else {}

    @property
    def over(self) -> bool:
        """Tell whether there are no more rounds."""
        return self._stopped or self.progress.round >= self.setup.rounds

    def stop(self) -> None:
        """Hear that no further round is wanted."""
        self._stopped = True

    def resume(self, state: Record, progress: Progress) -> None:
        """Go on from a checkpoint."""
        self.load_state(state)
        self.progress = progress

    def tested_domains(self) -> list[str]:
        """The domains of all test sets."""
        return list(dict.fromkeys(test.domain for test in self.allocation.tests))

    def memory_file(self, client: int, round_: int) -> Path:
        """Where a client's memory of a round, counted from 1, is kept."""
        return self.memory / f"client-{client:05d}-round-{round_:06d}.safetensors"

    def broadcast(self, client: int) -> Broadcast:
        """What goes to a client: the method's, and the layers'."""
        return self.layers.broadcast(self.server.broadcast(client), client)

    def knowledge(self) -> Record:
        """What all clients know besides the weights."""
        return {**self.server.knowledge, **self.layers.knowledge()}

    def shown(self) -> Shown:
        """What the server made of the last round's uploads, for the report."""
        return self.layers.shown(self.server.shown())

    def state(self) -> Record:
        """Everything that lasts on the server, the method's and the layers'."""
        return {**self.server.state(), **with_prefix("layers", self.layers.state())}

    def load_state(self, state: Record) -> None:
        """Go on from a state; in those of earlier versions the method's server kept what is a layer's now."""
        state = {f"layers/{BEFORE[name]}" if name in BEFORE else name: tensor for name, tensor in state.items()}
        self.server.load_state(state)
        self.layers.load_state(under_prefix("layers", state))

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
        away = self.layers.away(round_)
        out = self.sitting_out()
        dropped = sorted([*dropped, *(client for client in chosen if client in away)])
        return [c for c in chosen if c not in away and c not in out], [c for c in dropped if c not in out]

    def sitting_out(self) -> set[int]:
        """The clients whose uploads were rejected too often in a row: they take part no more."""
        most = self.setup.guard.strikes
        return {client for client, strikes in self.progress.strikes.items() if most and strikes >= most}

    def names(self, clients: Iterable[int]) -> list[str]:
        """The names of some clients, in client order."""
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

    def job(self, client: int, round_: int) -> Job:
        """A client's work in a round; the first is 0."""
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

    def accept(self, upload: Upload, round_: int, remembered: bool) -> None:
        """Take note of an upload that the server computes with."""
        self.progress.strikes.pop(upload.client, None)
        if remembered:  # a rejected round leaves no trace: the client goes on from its last good memory
            self.progress.memories[upload.client] = round_ + 1
        if upload.counts:
            self.progress.own[upload.client] = upload.counts

    def strike(self, client: int) -> str:
        """Take note of an upload that is rejected; the client's name."""
        if type(client) is not int or not 0 <= client < len(self.allocation.clients):
            return "a stranger"
        self.progress.strikes[client] = self.progress.strikes.get(client, 0) + 1
        return self.allocation.clients[client].name

    def accuracy(self) -> Metrics:
        """Test what is to be tested, as it is now."""
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
            knowledge = self.broadcast(client).knowledge
            self.progress.own[client] = self.engine.evaluate(self.own_weights(client), knowledge)

    def own_weights(self, client: int) -> Record:
        """What the server has for a client, with the tensors that the client keeps for itself."""
        own = records.read(self.memory_file(client, self.progress.memories[client]))
        return {**self.broadcast(client).weights, **under_prefix("own", own)}

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
