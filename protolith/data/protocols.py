"""Protocols: the named partitions with their settings, and the clients that come of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from protolith.data.domain import Domain, Split, Task
from protolith.data.partition import Hand, Partition, amount_of, in_turn, repaired, skewed
from protolith.data.spec import all_tasks
from protolith.errors import UserError, unknown
from protolith.seeds import generator

PROTOCOLS = {
    "shift": "several clients per domain, unevenly; tested on every domain (the papers' main setting)",
    "equal": "the same number of clients for every domain; tested on every domain",
    "unseen": "one client per domain but one; tested on the domain that nobody holds (leave one out)",
    "sites": "one client per domain, which holds all of it; tested on every domain (folders of one's own)",
    "local": "every client splits its own data; tested on the clients' own test parts",
}

POOL = ""  # the domain of the client that holds all clients' images


class Protocol(BaseModel):
    """The settings of a protocol, complete: enough to allocate the clients again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["shift", "equal", "unseen", "sites", "local"] = Field(
        "shift", description="who holds what and what is tested"
    )
    allocation: str = Field("", description="a named allocation of clients to domains; 'clients' overrides it")
    clients: dict[str, int] = Field({}, description="clients by domain")
    samples: int | float | dict[str, int | float] = Field(
        {},
        description="training images of a client: a number, or (with a decimal point) a fraction of its domain; "
        "one for all domains or one for each",
    )
    repair: bool = Field(
        False, description="give a client that lacks a class one image of it (as the papers do for Office)"
    )
    skew: float = Field(
        0.0,
        ge=0,
        description="label skew inside each domain: every class is divided among its clients by shares drawn from "
        "Dirichlet(skew); 0.1 is strong, 100 hardly any, 0 none",
    )
    unseen: str = Field("", description="the domain that nobody holds, for protocol 'unseen'")
    eval: Literal["test", "all"] = Field(
        "test", description="test on the hold-out, or on all images (training images included)"
    )
    local_test: float = Field(
        0.25, gt=0, lt=1, description="part of a client's data that is its test set, for protocol 'local'"
    )
    validation: float = Field(
        0.0, ge=0, lt=1, description="part of a client's training images that it only tests on, for `patience`"
    )
    pool: bool = Field(
        False, description="put all clients' images into one client: what training without federation would give"
    )
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the clients that train in a round")
    dropout: float = Field(0.0, ge=0, lt=1, description="probability that a chosen client fails in a round (simulated)")


@dataclass(frozen=True)
class Client:
    """Holder of one private data set. `rows` counts a domain's training images first, then its test images.

    The one client of a pool has no domain, and its rows count through all domains.
    """

    id: int
    name: str
    domain: str
    rows: Tensor


@dataclass(frozen=True)
class TestSet:
    """Images to test on: a domain's, or one client's own part of them."""

    __test__ = False  # not one of pytest's

    name: str
    domain: str
    rows: Tensor
    owner: int | None = None


@dataclass(frozen=True)
class Allocation:
    """All clients and all test sets of a run."""

    clients: tuple[Client, ...]
    tests: tuple[TestSet, ...]
    validation: tuple[TestSet, ...] = ()

    @property
    def measured(self) -> tuple[TestSet, ...]:
        """All sets on which a model is tested: those that count, and those that say when to stop."""
        return (*self.tests, *self.validation)


def select(domain: Domain, rows: Tensor) -> Split:
    """Take rows of a domain (training images first, then test images)."""
    border = len(domain.train)
    first, last = int(rows[0]), int(rows[-1])
    stretch = last - first + 1 == len(rows) and torch.equal(rows, torch.arange(first, last + 1))
    if first >= border and stretch:  # of the test part: no copy
        return _part(domain.test, slice(first - border, last - border + 1))
    train, test = rows[rows < border], rows[rows >= border] - border
    return joined([_part(domain.train, train), _part(domain.test, test)])


def joined(parts: Sequence[Split]) -> Split:
    """Several splits as one.

    Encoded test images have no views beside the image itself, which then stands for those that others have.
    """
    views = max((part.images.shape[1] for part in parts if part.encoded and len(part)), default=0)
    images = [
        part.images.expand(-1, views, *part.images.shape[2:]) if part.encoded and len(part) else part.images
        for part in parts
        if len(part) or not views
    ]
    colours = [part.colours for part in parts if part.colours is not None]
    return Split(
        torch.cat(images),
        torch.cat([part.labels for part in parts]),
        torch.cat(colours) if len(colours) == len(parts) else None,
    )


def _part(split: Split, rows: Tensor | slice) -> Split:
    return Split(split.images[rows], split.labels[rows], None if split.colours is None else split.colours[rows])


def partition_of(protocol: Protocol) -> Partition:
    """The partition that a protocol's name and settings stand for."""
    if protocol.skew and protocol.repair:
        raise UserError(
            "protocol.skew and protocol.repair: one takes classes away, the other gives them back; leave one out."
        )
    deal = skewed(protocol.skew) if protocol.skew else repaired if protocol.repair else in_turn
    named = {
        "shift": Partition(usual=True, deal=deal, eval=protocol.eval),
        "equal": Partition(each=2, usual=True, deal=deal, eval=protocol.eval),
        "sites": Partition(deal=deal, eval=protocol.eval),
        "unseen": Partition(deal=deal, eval=protocol.eval, unseen=protocol.unseen),
        "local": Partition(usual=True, deal=in_turn if deal is repaired else deal, own=protocol.local_test),
    }
    return named[protocol.name]


def plain_name(domain: str) -> str:
    """The name of a domain without the mark of a stand-in (`syn*` is allocated as `syn`)."""
    return domain.rstrip("*")


def complete(protocol: Protocol, task: Task) -> Protocol:
    """Fill in what the protocol leaves to the task: clients by domain and samples by domain."""
    names = [plain_name(domain.name) for domain in task.domains]
    partition = partition_of(protocol)
    if partition.unseen == "":
        raise UserError(f"protocol unseen: which domain? Write --set unseen=NAME, one of {', '.join(names)}.")
    if partition.unseen is not None and partition.unseen not in names:
        raise unknown("domain in protocol.unseen", partition.unseen, names)
    clients = _clients(protocol, partition, task.name, names)
    for name in clients:
        if name not in names:
            raise unknown("domain in protocol.clients", name, names)
    samples = protocol.samples
    by_domain = samples if isinstance(samples, dict) else dict.fromkeys(names, samples)
    for name in by_domain:
        if name not in names:
            raise unknown("domain in protocol.samples", name, names)
    whole = {name: 1.0 / max(1, clients.get(name, 1)) for name in names}
    return protocol.model_copy(update={"clients": clients, "samples": {**whole, **by_domain}})


def _clients(protocol: Protocol, partition: Partition, task: str, names: list[str]) -> dict[str, int]:
    """Clients by domain: the user's own, an allocation that the user or the task names, or the same number each."""
    tasks = all_tasks()
    if protocol.clients:
        return protocol.clients
    if partition.usual and protocol.allocation:
        known = {name: clients for spec in tasks.values() for name, clients in spec.allocations.items()}
        if protocol.allocation not in known:
            raise unknown("allocation in protocol.allocation", protocol.allocation, known)
        return dict(known[protocol.allocation])
    spec = tasks.get(task)
    usual = spec.allocations.get(spec.usual.get(protocol.name, "")) if spec and partition.usual else None
    if usual and usual.keys() <= set(names):
        return dict(usual)
    return {name: partition.each * (name != partition.unseen) for name in names}


def allocate(task: Task, protocol: Protocol, seed: int) -> Allocation:
    """Give every client its images and list the test sets; depends on nothing but the arguments."""
    protocol = complete(protocol, task)
    clients: list[Client] = []
    tests: list[TestSet] = []
    validation: list[TestSet] = []
    for domain in task.domains:
        held, test = _allocate_domain(domain, len(task.classes), protocol, seed, len(clients))
        if protocol.validation:
            held, aside = _set_aside(held, protocol.validation)
            validation += aside
        clients += held
        tests += test
    if not clients:
        raise UserError("protocol.clients gives no domain a client: at least one is needed.")
    if protocol.pool:
        return Allocation((_pooled(task, clients),), tuple(replace(test, owner=None) for test in tests))
    return Allocation(tuple(clients), tuple(tests), tuple(validation))


def data_of(task: Task, client: Client) -> Split:
    """The images of a client."""
    if client.domain != POOL:
        return select(task.by_name[client.domain], client.rows)
    parts = []
    for domain, first in _first_rows(task).items():
        size = len(task.by_name[domain].train) + len(task.by_name[domain].test)
        rows = client.rows[(client.rows >= first) & (client.rows < first + size)] - first
        if len(rows):
            parts.append(select(task.by_name[domain], rows))
    return joined(parts)


def _pooled(task: Task, clients: list[Client]) -> Client:
    first = _first_rows(task)
    return Client(0, "pool", POOL, torch.cat([client.rows + first[client.domain] for client in clients]))


def _first_rows(task: Task) -> dict[str, int]:
    """Where each domain's rows begin when they are counted through all domains."""
    sizes = [len(domain.train) + len(domain.test) for domain in task.domains]
    starts = [0, *accumulate(sizes)]
    return {domain.name: start for domain, start in zip(task.domains, starts[:-1], strict=True)}


def _allocate_domain(
    domain: Domain, classes: int, protocol: Protocol, seed: int, first_id: int
) -> tuple[list[Client], list[TestSet]]:
    name, partition = plain_name(domain.name), partition_of(protocol)
    names = [f"{domain.name}-{index + 1}" for index in range(protocol.clients.get(name, 0))]
    clients: list[Client] = []
    tests: list[TestSet] = []
    for client_name, held in zip(names, _dealt(domain, name, names, classes, protocol, seed), strict=True):
        client = len(clients) + first_id
        rows, aside = partition.of_client(held)
        if aside is not None:
            tests.append(TestSet(client_name, domain.name, aside, client))
        if len(rows) == 0:
            raise UserError(
                f"client {client_name} would have no training image: raise protocol.samples for domain {name}."
            )
        clients.append(Client(client, client_name, domain.name, rows))
    if (tested := partition.of_domain(domain, name)) is not None:
        tests.append(TestSet(domain.name, domain.name, tested))
    return clients, tests


def _dealt(domain: Domain, name: str, clients: list[str], classes: int, protocol: Protocol, seed: int) -> list[Tensor]:
    """The rows of each client of a domain."""
    if not clients:
        return []
    partition, rng = partition_of(protocol), generator(seed, "allocate", name)
    labels = partition.held(domain)
    order = torch.randperm(len(labels), generator=rng)
    samples = protocol.samples[name] if isinstance(protocol.samples, dict) else protocol.samples
    return partition.deal(Hand(order, labels, classes, clients, amount_of(samples, name, len(labels)), rng))


def _set_aside(clients: list[Client], part: float) -> tuple[list[Client], list[TestSet]]:
    """Take a part of each client's training images for validation; their order is random already."""
    kept, aside = [], []
    for client in clients:
        cut = max(1, round(len(client.rows) * part))
        if cut >= len(client.rows):
            raise UserError(f"client {client.name} has too few images for protocol.validation = {part:g}.")
        aside.append(TestSet(f"validation of {client.name}", client.domain, client.rows[:cut].sort().values, client.id))
        kept.append(replace(client, rows=client.rows[cut:]))
    return kept, aside


def participants(count: int, protocol: Protocol, seed: int, round_: int) -> tuple[list[int], list[int]]:
    """Draw the clients of a round, in client order: those that take part, and those that were chosen but fail."""
    rng = generator(seed, "participants", round_)
    chosen = (
        torch.randperm(count, generator=rng)[: math.ceil(count * protocol.participation - 1e-9)].sort().values.tolist()
    )
    fails = (torch.rand(count, generator=rng) < protocol.dropout).tolist()
    return [c for c in chosen if not fails[c]], [c for c in chosen if fails[c]]
