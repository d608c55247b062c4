"""The engine whose workers are real sites: one exchange tests a round and trains the next."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protolith import records
from protolith.data.protocols import Allocation
from protolith.engines.messages import read_trained, sentence, whole
from protolith.errors import RunFailed
from protolith.evaluation.measures import Counts, from_plain, measures_of
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.engine import Job, Result
from protolith.federation.hooks import Sites
from protolith.federation.setup import Setup
from protolith.flower.wire import Exchange, Reply, Request, Say, SiteFacts
from protolith.records import Broadcast, Record, Upload

_GO_ON = "When the sites are back, go on with `protolith resume`."
POLL = 1.0  # seconds between two looks at who is there
RELEASES = 1 << 31  # times that a site can have sent prototypes


@dataclass(frozen=True)
class Patience:
    """How long the server waits, and for how many sites."""

    quorum: int  # sites that must answer in a round
    wait: float  # seconds to wait for that many to be there, before the run stops
    answer: float  # seconds that a site may take for its work


@dataclass(frozen=True)
class _Early:
    """A result that came with the test before its round, and what it answers; none when the site failed."""

    job: Job
    broadcast: Broadcast
    result: Result | None


class FlowerEngine(Sites):
    """Executes each client's work at its site, and goes along with the rounds, so that it can begin the next one."""

    def __init__(
        self,
        exchange: Exchange,
        setup: Setup,
        allocation: Allocation,
        sites: Sequence[SiteFacts],
        run: str,
        patience: Patience,
        say: Say = print,
    ) -> None:
        self.exchange = exchange
        self.setup = setup
        self.allocation = allocation
        self.sites = {site.name: site for site in sites}
        self.measures = measures_of(setup.measures)
        self.run = run
        self.patience = patience
        self.say = say
        self._coordinator: Coordinator | None = None
        self._early: dict[int, _Early] = {}
        self._reasons: dict[str, str] = {}
        self._missing: list[dict[str, str]] = []
        self.releases: dict[str, int] = {}  # client -> how often its site has sent prototypes with noise, as it says

    def started(self, coordinator: Coordinator) -> None:
        """Note whom to ask what comes next, so that a test and the next training are one exchange."""
        self._coordinator = coordinator

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Say what happened besides the numbers: who was missing, and why."""
        metrics["missing"], self._missing = self._missing, []

    def close(self) -> None:
        """Nothing to give back: the sites stay."""

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        """Have the sites train; whoever does not answer is left out, as long as the quorum holds."""
        if not self._early:
            self._reasons.clear()
        sent = {job.client: broadcast(job.client) for job in jobs}
        early = {job.client: self._came_early(job, sent[job.client]) for job in jobs}
        self._early.clear()
        done = {client: found.result for client, found in early.items() if found and found.result}
        there = self.exchange.connected()
        # A site that failed a moment ago is not asked again, unless the quorum depends on it.
        self._collect([job for job in jobs if not early[job.client] and self._site(job) in there], sent, done)
        wanted, deadline = min(self.patience.quorum, len(jobs)), time.monotonic() + self.patience.wait
        while len(done) < wanted:
            self._collect(self._wait_for(jobs, done, wanted, deadline), sent, done)
        for job in jobs:
            result = done.pop(job.client, None)
            if result is None:
                self._miss(self._site(job), "training")
                continue
            if result.remembered:  # the memory stays at the site; here is only the note that there is one
                records.write(job.memory_out, {"round": torch.tensor(job.round + 1)})
            yield result

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, Counts]:
        """Have every site test the weights on its own test set, and train the next round with the same message."""
        self._reasons.clear()
        tested = {test.domain for test in self.allocation.tests}
        jobs = {self._site(job): job for job in self._next_jobs()}
        sent = {job.client: self._next_broadcast(job.client) for job in jobs.values()}
        deadline = time.monotonic() + self.patience.wait
        counts: dict[str, Counts] = {}
        while not counts:
            there = self.exchange.connected()
            requests = []
            for site in (name for name in self.sites if name in there and name in {*tested, *jobs}):
                job = jobs.get(site)
                message = sent[job.client] if job else None
                requests.append(self._request(site, job, message, (weights, knowledge) if site in tested else None))
            replies = self._ask(requests)
            counts = self._counts(replies)
            if not counts and time.monotonic() > deadline:
                raise RunFailed(f"no site tested the model within {self.patience.wait:.0f} s. {_GO_ON}")
            if not counts:
                time.sleep(POLL)
        asked = {request.site for request in requests}
        self._early = {
            job.client: _Early(job, sent[job.client], self._result(job, replies.get(site)))
            for site, job in jobs.items()
            if site in asked
        }
        for site in sorted(tested - {test.domain for test in self.allocation.tests if test.name in counts}):
            self._miss(site, "test")
        return counts

    def _next_jobs(self) -> list[Job]:
        """The jobs of the round after the one that is being tested."""
        if (now := self._coordinator) is None or now.progress.round + 1 >= self.setup.rounds:
            return []
        round_ = now.progress.round + 1
        return [now.job(client, round_) for client in now.participants(round_)[0]]

    def _next_broadcast(self, client: int) -> Broadcast:
        assert self._coordinator is not None
        return self._coordinator.broadcast(client)

    def _came_early(self, job: Job, broadcast: Broadcast) -> _Early | None:
        """What came early for a job, if it answers exactly what would be sent now."""
        early = self._early.get(job.client)
        if early is None or (early.job.round, early.job.memory_in) != (job.round, job.memory_in):
            return None
        return early if _same(early.broadcast, broadcast) else None

    def _collect(self, jobs: Sequence[Job], sent: Mapping[int, Broadcast], done: dict[int, Result]) -> None:
        """Have these jobs done; those that were go to `done`."""
        replies = self._ask([self._request(self._site(job), job, sent[job.client]) for job in jobs])
        for job in jobs:
            if result := self._result(job, replies.get(self._site(job))):
                done[job.client] = result

    def _wait_for(self, jobs: Sequence[Job], done: Mapping[int, Result], wanted: int, deadline: float) -> list[Job]:
        """Wait until enough sites are there for the quorum, or stop the run."""
        self.say(f"{len(done)} of the {wanted} sites that a round needs have answered: waiting for others")
        while time.monotonic() < deadline:
            time.sleep(POLL)
            there = self.exchange.connected()
            left = [job for job in jobs if job.client not in done and self._site(job) in there]
            if len(done) + len(left) >= wanted:
                return left
        sites = [self._site(job) for job in jobs if job.client not in done]
        reasons = "; ".join(f"{site}: {self._reasons.get(site, 'not connected')}" for site in sites)
        raise RunFailed(
            f"a round needs {wanted} sites, and after waiting {self.patience.wait:.0f} s only {len(done)} had "
            f"answered ({reasons}). {_GO_ON}"
        )

    def _ask(self, requests: Sequence[Request]) -> dict[str, Reply]:
        """Ask, and keep the good answers; why there is no other is noted."""
        replies = self.exchange.ask(requests, self.patience.answer) if requests else {}
        for request in requests:
            reply = replies.get(request.site) or Reply(request.site, error="did not answer in time")
            if reply.error:
                self._note(request.site, reply.error)
        return {site: reply for site, reply in replies.items() if not reply.error}

    def _note(self, site: str, reason: str) -> None:
        self._reasons[site] = reason
        self.say(f"site {site}: {reason}")

    def _miss(self, site: str, phase: str) -> None:
        reason = self._reasons.get(site, "not connected")
        self._missing.append({"site": site, "phase": phase, "reason": reason})

    def _site(self, job: Job) -> str:
        return self.allocation.clients[job.client].domain

    def _request(
        self,
        site: str,
        job: Job | None = None,
        broadcast: Broadcast | None = None,
        tested: tuple[Record, Record] | None = None,
    ) -> Request:
        facts = self.sites[site]
        about: dict[str, Any] = {
            "kind": "work",
            "run": self.run,
            "setup": self.setup.model_dump(mode="json", include=set(Setup.model_fields)),
            "sites": list(self.sites),  # a site learns the others' names, and nothing about their images
            "images": [facts.train, facts.test],
            "classes": list(facts.classes),
            "tested": "",
        }
        content: dict[str, Record] = {}
        if job is not None and broadcast is not None:
            about["job"] = {"client": job.client, "round": job.round, "writes": job.round + 1, **_memory(job)}
            content |= {"weights": broadcast.weights, "knowledge": broadcast.knowledge}
        if tested is not None:
            same = broadcast is not None and _same(broadcast, Broadcast(*tested))
            about["tested"] = "broadcast" if same else "own"
            if not same:
                content |= {"tested-weights": tested[0], "tested-knowledge": tested[1]}
        return Request(site, about, content)

    def _result(self, job: Job, reply: Reply | None) -> Result | None:
        """Read an answer; what is in it is not trusted, and the guard looks at its tensors later."""
        if reply is None:
            return None
        try:
            said = read_trained(reply.about)
            releases = whole(reply.about.get("releases", 0), RELEASES)
        except ValueError as error:
            self._note(reply.site, f"sent an answer that cannot be read ({sentence(error)})")
            return None
        self.releases[job.name] = max(releases, self.releases.get(job.name, 0))
        weights, knowledge = reply.records.get("weights", {}), reply.records.get("knowledge", {})
        return Result(Upload(job.client, said.count, weights, knowledge, said.metrics), said.remembered)

    def _counts(self, replies: Mapping[str, Reply]) -> dict[str, Counts]:
        """Counts by test set, of the sites that answered with possible numbers."""
        found: dict[str, Counts] = {}
        for test in self.allocation.tests:
            if test.domain not in replies:
                continue
            try:
                said = replies[test.domain].about["counts"][test.name]
                classes = len(self.sites[test.domain].classes)
                found[test.name] = from_plain(said, self.measures, classes, len(test.rows))
            except (KeyError, TypeError, ValueError):
                self._note(test.domain, "sent a test result that cannot be")
        return found


def _memory(job: Job) -> dict[str, Any]:
    """Which memory a site has to start from, and which ones a checkpoint may still need."""
    notes = sorted(job.memory_out.parent.glob(f"client-{job.client:05d}-round-*.safetensors"))
    return {"memory": _round(job.memory_in) if job.memory_in else -1, "keep": [_round(note) for note in notes]}


def _round(note: Path) -> int:
    return int(records.read(note)["round"])


def _same(one: Broadcast, other: Broadcast) -> bool:
    """Tell whether two broadcasts are the same, bit for bit."""
    return all(
        a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)
        for a, b in ((one.weights, other.weights), (one.knowledge, other.knowledge))
    )
