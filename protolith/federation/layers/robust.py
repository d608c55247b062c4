"""Robust rules: what the server makes of a round's uploads when it expects some of them to be bad.

Two questions are answered for every option. What replaces the weighted mean of records (`RobustMean`), and what
becomes of points that are not averaged but clustered, reweighted or kept one by one (`moderate`). All numbers are
float64 while they are compared, and all uploads of a round are in memory at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from protolith.errors import UserError, unknown
from protolith.federation.layers.base import Layer
from protolith.methods.averaging import Mean, Pooling, RecordMean, is_buffer
from protolith.methods.fedavg import Server
from protolith.methods.registry import Method
from protolith.records import Record

Kind = Literal["mean", "clip", "trimmed", "median", "geometric-median", "multi-krum"]

ALIKE = ("median", "geometric-median")  # the rules that count every client alike, whatever its weight

TINY = 1e-300  # keeps 0 / 0 away
STEPS = 200  # of Weiszfeld's iteration, at most
CLOSE = 1e-9  # it ends when a step is shorter than this part of the typical distance
SMOOTH = 1e-7  # part of the typical distance below which a point counts as reached


class RobustLayer(Layer):
    """Puts a rule in the place of a server's means."""

    def __init__(self, kind: Kind, share: float) -> None:
        self.kind = kind
        self.share = share

    def refuses(self, method: Method, params: Any, beside: Sequence[Layer]) -> str | None:
        """There must be something to aggregate, and weights that a server learns must have an effect."""
        if method.server.counts_by == "nothing" and method.server.schema is Server.schema:
            return f"robust = '{self.kind}' is not for {method.name}: its server aggregates nothing."
        if method.server.counts_by == "learned" and self.kind in ALIKE:
            return f"robust = '{self.kind}' is not for {method.name}: its weights of the clients would have no effect."
        return None

    def pooling(self) -> "Robust":
        """The rule."""
        return Robust(self.kind, self.share)


@dataclass(frozen=True)
class Robust(Pooling):
    """Which rule, and the share of the clients that is assumed to be bad."""

    kind: Kind = "mean"
    share: float = 0.2

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise _unknown(self.kind)

    def bad(self, senders: int, holders: int | None = None) -> int:
        """How many bad ones to expect among the holders of something: all bad senders, but never half."""
        among = senders if holders is None else holders
        return max(0, min(math.ceil(self.share * senders - 1e-9), (among - 1) // 2))

    def averaging(self, origin: Mapping[str, Tensor] | None = None) -> Mean:
        """Begin a mean of records; moves are measured from `origin` (zeros when there is none)."""
        return RecordMean() if self.kind == "mean" else RobustMean(self, origin or {})

    def moderate(self, points: Tensor) -> Tensor:
        """Make the clients' points [M, ...] safe to use one by one."""
        if self.kind == "mean":
            return points
        return moderate(points.double().flatten(1), self.bad(len(points)), self.kind)[0].view_as(points).to(points)

    def prototypes(self, prototypes: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Moderate prototypes [M, K, d] class by class; a prototype that is left out has the count 0."""
        if self.kind == "mean":
            return prototypes, counts
        new, kept = prototypes.clone(), counts.clone()
        for label in range(counts.shape[1]):
            holders = (counts[:, label] > 0).nonzero().squeeze(1)
            if len(holders):
                bad = self.bad(len(counts), len(holders))
                points, stays = moderate(prototypes[holders, label].double(), bad, self.kind)
                new[holders, label] = points.to(new)
                kept[holders[~stays], label] = 0
        return new, kept

    def within_reach(self, points: Tensor, labels: Tensor, senders: Tensor) -> Tensor:
        """Moderate points [N, d] of which a client has several in a class, by `clip` whatever the rule.

        The centre of a class is the coordinate-wise median of the clients' means, a client's reach the distance of
        its furthest point; no point stays further out than the (M − b)-th smallest reach.
        """
        new, clients = points.double(), len(torch.unique(senders))
        for label in torch.unique(labels).tolist():
            places = (labels == label).nonzero().squeeze(1)
            here, who = new[places], torch.unique(senders[places], return_inverse=True)[1]
            holders = int(who.max()) + 1
            centre = median(torch.stack([here[who == m].mean(dim=0) for m in range(holders)]))
            out = lengths([here], [centre])
            reach = torch.stack([out[who == m].max() for m in range(holders)]).sort().values
            limit = reach[holders - 1 - self.bad(clients, holders)]
            factors = torch.where(out > limit, limit / out.clamp_min(TINY), 1.0)
            new[places] = centre + factors[:, None] * (here - centre)
        return new.to(points)


class RobustMean:
    """Takes the place of `RecordMean`: collects the records and settles on one record in the end.

    Parameters, BatchNorm's statistics and its counters are judged apart, for their scales have nothing in common.
    """

    def __init__(self, robust: Robust, origin: Mapping[str, Tensor]) -> None:
        self.robust = robust
        self.origin = origin
        self.weight = 0.0
        self._records: list[Mapping[str, Tensor]] = []
        self._weights: list[float] = []

    def add(self, record: Mapping[str, Tensor], weight: float) -> None:
        """Take in one more record."""
        if weight > 0:
            self.weight += weight
            self._records.append(record)
            self._weights.append(weight)

    def mean(self) -> Record:
        """What the rule makes of the records, in their types (empty when nothing came)."""
        first = self._records[0] if self._records else {}
        groups: dict[tuple[bool, bool], list[str]] = {}
        for name, tensor in first.items():
            groups.setdefault((is_buffer(name), tensor.is_floating_point()), []).append(name)
        found = {name: tensor for names in groups.values() for name, tensor in self._settled(names).items()}
        return {name: found[name] for name in first}

    def _settled(self, names: Sequence[str]) -> Record:
        first = self._records[0]
        blocks = [torch.stack([record[name].flatten() for record in self._records]) for name in names]
        origin = [self.origin[n] if n in self.origin else torch.zeros_like(first[n]) for n in names]
        weights = torch.tensor(self._weights, dtype=torch.float64)
        bad = self.robust.bad(len(weights))
        made = settle(blocks, weights, bad, self.robust.kind, [tensor.flatten().double() for tensor in origin])
        return {name: new.view_as(first[name]).to(first[name].dtype) for name, new in zip(names, made, strict=True)}


Blocks = Sequence[Tensor]  # M points in pieces: [M, D] each, so that a model need not be one long vector


def settle(blocks: Blocks, weights: Tensor, bad: int, kind: Kind, origin: Blocks) -> list[Tensor]:
    """Make one point of M; `median` and `geometric-median` count every client alike, the others by weight."""
    if kind == "clip":
        factors = _limited(lengths(blocks, origin), bad)
        share = (weights * factors / weights.sum())[:, None]
        return [o + (share * (b.double() - o)).sum(dim=0) for b, o in zip(blocks, origin, strict=True)]
    if kind == "trimmed":
        return [_trimmed(block.double(), weights, bad) for block in blocks]
    if kind == "median":
        return [median(block) for block in blocks]
    if kind == "geometric-median":
        return geometric_median(blocks)
    if kind != "multi-krum":
        raise _unknown(kind)
    chosen = weights * krum(blocks, bad)
    return [((chosen / chosen.sum())[:, None] * block.double()).sum(dim=0) for block in blocks]


def moderate(points: Tensor, bad: int, kind: Kind) -> tuple[Tensor, Tensor]:
    """Pull points [M, D] to where the others are; and say which of them stay [M] (a left out one is the others' mean).

    clip: no point is further from the coordinate-wise median than the (M − b)-th nearest. trimmed: every coordinate
    lies between the (b + 1)-th smallest and the (b + 1)-th largest. median, geometric-median: all points become that
    one. multi-krum: the b points with the worst scores are left out.
    """
    everyone = torch.ones(len(points), dtype=torch.bool)
    if kind == "clip":
        centre = median(points)
        return centre + _limited(lengths([points], [centre]), bad)[:, None] * (points - centre), everyone
    if kind == "trimmed":
        ordered = points.sort(dim=0).values
        return points.clamp(ordered[bad], ordered[len(points) - 1 - bad]), everyone
    if kind in ALIKE:
        one = median(points) if kind == "median" else geometric_median([points])[0]
        return one.expand_as(points).clone(), everyone
    if kind != "multi-krum":
        raise _unknown(kind)
    stays = krum([points], bad)
    return torch.where(stays[:, None], points, points[stays].mean(dim=0)), stays


def _unknown(kind: str) -> UserError:
    return unknown("robust rule", kind, get_args(Kind))


def lengths(blocks: Blocks, centre: Blocks) -> Tensor:
    """Distances [M] of the points from one point."""
    squares = [(block.double() - one).square().sum(dim=1) for block, one in zip(blocks, centre, strict=True)]
    return torch.stack(squares).sum(dim=0).sqrt()


def _limited(norms: Tensor, bad: int) -> Tensor:
    """Factors [M] that bring every norm down to the (M − b)-th smallest, which some good client has or exceeds."""
    limit = norms.sort().values[len(norms) - 1 - bad]
    return torch.where(norms > limit, limit / norms.clamp_min(TINY), 1.0)


def median(points: Tensor) -> Tensor:
    """The coordinate-wise median [D]; of an even number, the mean of the middle two."""
    ordered = points.double().sort(dim=0).values
    return (ordered[(len(points) - 1) // 2] + ordered[len(points) // 2]) / 2


def _trimmed(points: Tensor, weights: Tensor, bad: int) -> Tensor:
    """The weighted mean of each coordinate without its b smallest and b largest values."""
    ordered, order = points.sort(dim=0, stable=True)
    kept = slice(bad, len(points) - bad)
    shares = weights[order[kept]]
    return (shares * ordered[kept]).sum(dim=0) / shares.sum(dim=0)


def geometric_median(blocks: Blocks) -> list[Tensor]:
    """The point with the least sum of distances, by Weiszfeld's iteration from the coordinate-wise median."""
    now = [median(block) for block in blocks]
    typical = float(lengths(blocks, now).quantile(0.5))
    if typical == 0:  # half of the points and more are this one, which therefore is it
        return now
    for _ in range(STEPS):
        pull = 1.0 / (lengths(blocks, now).square() + (SMOOTH * typical) ** 2).sqrt()
        shares = (pull / pull.sum())[:, None]
        new = [(shares * block.double()).sum(dim=0) for block in blocks]
        step = float(lengths([n[None] for n in new], now))
        now = new
        if step <= CLOSE * typical:
            break
    return now


def krum(blocks: Blocks, bad: int) -> Tensor:
    """Which points [M] stay: all but the b whose M − b − 2 nearest others are the furthest away."""
    count = len(blocks[0])
    if bad == 0:
        return torch.ones(count, dtype=torch.bool)
    squares = torch.stack([lengths(blocks, [block[i].double() for block in blocks]).square() for i in range(count)])
    others = squares.sort(dim=1).values[:, 1 : 1 + max(1, count - bad - 2)]  # the first is the point itself
    order = others.sum(dim=1).argsort(stable=True)
    return torch.zeros(count, dtype=torch.bool).scatter(0, order[: count - bad], True)
