"""What server and sites say to each other, whatever carries it: plain values and records, nothing else."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from protolith.data.domain import Domain, Split, Task
from protolith.engines.messages import sentence, whole
from protolith.records import Record

IMAGES = 100_000_000  # of a site
CLASSES = 100_000  # of a task
NOTES = 100  # of a site; more are not kept
WORD = 500  # letters of a name


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
        """Read facts that came as plain values; ValueError when they are none."""
        train, test = (whole(values.get(name), IMAGES) for name in ("train", "test"))
        classes, notes = _words(values.get("classes", []), "classes"), values.get("notes", [])
        if not isinstance(notes, list | tuple):
            raise ValueError("notes is no list")
        per_class = values.get("per_class", [])
        if not isinstance(per_class, list | tuple) or len(per_class) > CLASSES:
            raise ValueError("per_class is no list of counts")
        counts = tuple(whole(count, IMAGES) for count in per_class)
        said = tuple(sentence(note) for note in notes[:NOTES])
        return cls(_words([values.get("name")], "name")[0], train, test, classes, counts, said)

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


def _words(values: Any, what: str) -> tuple[str, ...]:
    if not isinstance(values, list | tuple) or len(values) > CLASSES:
        raise ValueError(f"{what} is no list of words")
    if not all(isinstance(word, str) and len(word) <= WORD and word.isprintable() for word in values):
        raise ValueError(f"{what} holds something that is no word")
    return tuple(values)


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
    while not set(sites) <= (there := exchange.connected()) and time.monotonic() < deadline:
        time.sleep(1.0)
    return there


def wait_for_return(exchange: Exchange, sites: Sequence[str], seconds: float, say: Say) -> list[str]:
    """Wait until all sites have answered, or for so long; return those that have not.

    They are asked, because for a minute Flower takes a site that was killed for connected.
    """
    deadline, away = time.monotonic() + seconds, list(sites)
    say(f"going on with the sites that were there before: waiting for {', '.join(away)}, up to {seconds:.0f} s")
    while away and (left := deadline - time.monotonic()) > 0:
        asked = [site for site in away if site in exchange.connected()]
        replies = exchange.ask([Request(site, {"kind": "hello"}) for site in asked], left) if asked else {}
        came = [site for site in asked if site in replies and not replies[site].error]
        away = [site for site in away if site not in came]
        if came and away:
            say(f"{', '.join(came)} answered; waiting for {', '.join(away)}, up to {left:.0f} s")
        if away:
            time.sleep(1.0)
    say(f"going on without {', '.join(away)}: no answer within {seconds:.0f} s" if away else "all of them are there")
    return away
