"""What server and sites say to each other, whatever carries it: plain values and records, nothing else."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from protolith.data.domain import Domain, Split, Task
from protolith.records import Record


@dataclass(frozen=True)
class Request:
    """What the server asks of one site."""

    site: str
    about: dict[str, Any]
    records: dict[str, Record] = field(default_factory=dict)


@dataclass(frozen=True)
class Reply:
    """What a site answers; `error` is the sentence that says why it has no answer."""

    site: str
    about: dict[str, Any] = field(default_factory=dict)
    records: dict[str, Record] = field(default_factory=dict)
    error: str = ""


class Exchange(Protocol):
    """The way to the sites and back."""

    def connected(self) -> set[str]:
        """The sites that are there at the moment."""
        ...

    def ask(self, requests: Sequence[Request], seconds: float) -> dict[str, Reply]:
        """Ask several sites at once and wait for their answers; a site that does not answer is an error."""
        ...


@dataclass(frozen=True)
class SiteFacts:
    """All that the server knows of a site's data: numbers, and the names of the classes."""

    name: str
    train: int
    test: int
    classes: tuple[str, ...]
    per_class: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> "SiteFacts":
        """Read facts that came as plain values."""
        lists = {name: tuple(values.get(name, ())) for name in ("classes", "per_class", "notes")}
        return cls(str(values["name"]), int(values["train"]), int(values["test"]), **lists)

    def plain(self) -> dict[str, Any]:
        """Write the facts as plain values."""
        return {
            "name": self.name,
            "train": self.train,
            "test": self.test,
            "classes": list(self.classes),
            "per_class": list(self.per_class),
            "notes": list(self.notes),
        }


def hollow_task(name: str, sites: Sequence[SiteFacts], size: int, own: Domain | None = None) -> Task:
    """Make a task of all sites in which only a site's own domain has images.

    Who trains on what depends on numbers of images and on the seed alone, so that the server (which has no
    images) and every site come to the same allocation.
    """
    domains = tuple(
        own if own is not None and own.name == site.name else Domain(site.name, *_empty(site, size)) for site in sites
    )
    notes = tuple(note for site in sites for note in site.notes)
    return Task(name, sites[0].classes, domains, notes)


def _empty(site: SiteFacts, size: int) -> tuple[Split, Split]:
    # One black pixel, shown as often as needed: it takes no memory.
    pixel = torch.zeros(1, 1, 1, 1, dtype=torch.uint8)
    train, test = (
        Split(pixel.expand(count, size, size, 3), torch.zeros(count, dtype=torch.int64))
        for count in (site.train, site.test)
    )
    return train, test


Say = Callable[[str], None]


def wait_for_sites(exchange: Exchange, sites: Sequence[str], seconds: float) -> set[str]:
    """Wait until all sites are there, or for so long; return those that are."""
    deadline = time.monotonic() + seconds
    while (there := exchange.connected()) < set(sites) and time.monotonic() < deadline:
        time.sleep(1.0)
    return there
