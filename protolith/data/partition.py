"""Who holds what and what is tested, as a value made of parts; the protocols are named ones (`protocols.py`)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from protolith.data.domain import Domain
from protolith.errors import UserError

TRIES = 100  # draws of a label skew before it is called impossible


@dataclass(frozen=True)
class Hand:
    """A domain's images before they are dealt: their rows in random order, and who is to get how many."""

    rows: Tensor
    labels: Tensor  # of all rows of the domain
    classes: int
    clients: Sequence[str]
    amount: int
    rng: torch.Generator


Deal = Callable[[Hand], list[Tensor]]  # rows by client


def in_turn(hand: Hand) -> list[Tensor]:
    """Without replacement within a domain; the last client gets what is left."""
    dealt, rest = [], hand.rows
    for client in hand.clients:
        if len(rest) == 0:
            raise UserError(
                f"client {client} would have no image, because the clients before it hold the whole domain: "
                "lower protocol.samples."
            )
        dealt.append(rest[: hand.amount])
        rest = rest[hand.amount :]
    return dealt


def repaired(hand: Hand) -> list[Tensor]:
    """In turn; then a client that lacks a class gets one image of it, as in the papers' code."""
    return [_repair(rows, hand) for rows in in_turn(hand)]


def _repair(rows: Tensor, hand: Hand) -> Tensor:
    """Swap in one random image of each class that the client lacks, for one of a class that it holds twice."""
    rows = rows.clone()
    for missing in range(hand.classes):
        held = hand.labels[rows]
        candidates = torch.nonzero(hand.labels == missing).flatten()
        if bool((held == missing).any()) or len(candidates) == 0:
            continue
        spare = [k for k in range(hand.classes) if int((held == k).sum()) >= 2]
        if not spare:
            continue
        loser = spare[int(torch.randint(len(spare), (1,), generator=hand.rng))]
        out = torch.nonzero(held == loser).flatten()
        out_index = out[torch.randint(len(out), (1,), generator=hand.rng)]
        rows[out_index] = candidates[torch.randint(len(candidates), (1,), generator=hand.rng)]
    return rows


def skewed(alpha: float) -> Deal:
    """Label skew: the images that the clients get together, each class divided by shares from Dirichlet(alpha).

    Every image goes to one client at most. A draw that leaves a client without an image is drawn again.
    """

    def deal(hand: Hand) -> list[Tensor]:
        count = len(hand.clients)
        rows = hand.rows[: count * hand.amount]
        rng = np.random.default_rng(int(torch.randint(2**62, (1,), generator=hand.rng)))
        for _ in range(TRIES):
            owner = torch.empty(len(rows), dtype=torch.int64)
            for label in range(hand.classes):
                members = torch.nonzero(hand.labels[rows] == label).flatten()
                ends = np.rint(np.cumsum(rng.dirichlet([alpha] * count))[:-1] * len(members))
                owner[members] = torch.from_numpy(np.searchsorted(ends, np.arange(len(members)), side="right"))
            if int((torch.bincount(owner, minlength=count) > 0).sum()) == count:
                return [rows[owner == client] for client in range(count)]
        raise UserError(
            f"protocol.skew = {alpha:g}: {TRIES} draws left one of {hand.clients[0]} … {hand.clients[-1]} without an "
            "image; raise it or protocol.samples, or take fewer clients."
        )

    return deal


@dataclass(frozen=True)
class Partition:
    """Who holds what, and what is tested."""

    each: int = 1  # clients of a domain where nothing else is said
    usual: bool = False  # whether an allocation that the user or the task names comes before that
    deal: Deal = in_turn  # how the clients of a domain share its images
    unseen: str | None = None  # the domain that nobody holds and that alone is tested
    own: float = 0.0  # part of a client's images that its own models are tested on; no domain is tested then
    eval: Literal["test", "all"] = "test"  # what is tested of a domain

    def held(self, domain: Domain) -> Tensor:
        """The labels of what a domain's clients hold: its training images, or all where they test themselves."""
        return torch.cat([domain.train.labels, domain.test.labels]) if self.own else domain.train.labels

    def of_domain(self, domain: Domain, name: str) -> Tensor | None:
        """The rows of a domain that are tested, if any."""
        if self.own or self.unseen not in (None, name):
            return None
        start = 0 if self.eval == "all" else len(domain.train)
        return torch.arange(start, len(domain.train) + len(domain.test))

    def of_client(self, rows: Tensor) -> tuple[Tensor, Tensor | None]:
        """What a client trains on, and what it keeps back to be tested on."""
        cut = max(1, round(len(rows) * self.own)) if self.own else 0
        return rows[cut:], rows[:cut].sort().values if cut else None


def amount_of(samples: float, domain: str, total: int) -> int:
    """The images of one client: a number, or a fraction of its domain."""
    if isinstance(samples, float):
        if not 0 < samples <= 1:
            raise UserError(
                f"protocol.samples of domain {domain} is {samples}: a fraction lies between 0 and 1, "
                "and a number of images has no decimal point."
            )
        # 1/3 of 900 is 300, not 299 for want of a digit.
        return math.floor(samples * total + 1e-9)
    if samples < 1:
        raise UserError(f"protocol.samples of domain {domain} is {samples}: at least 1 image is needed.")
    return samples
