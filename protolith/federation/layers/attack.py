"""Attacks to test with, in simulations only: some clients lie, always the same ones, in a way that the run names.

What an attacker does follows from (run seed, round, client) and from what it was sent, so that it is the same on any
number of workers and after a resume.
"""

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from protolith.data.domain import Split
from protolith.federation.layers.base import Layer
from protolith.methods.averaging import is_buffer
from protolith.methods.base import Context
from protolith.records import Broadcast, Record, Upload
from protolith.seeds import generator

Kind = Literal[
    "none", "label-flip", "sign-flip", "scale", "noise", "prototype-shift", "prototype-far", "copycat", "nan",
    "dropout-bursts",
]  # fmt: skip

STRENGTH = {"sign-flip": 4.0, "scale": 10.0, "noise": 5.0, "prototype-shift": 1.0, "prototype-far": 10.0}
BURST = 3  # rounds that a drop-out burst lasts


class Attack(BaseModel):
    """A simulated attack: what some of the clients do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind = Field("none", description="what attackers do (simulation only; see docs/robust.md)")
    share: float = Field(0.2, gt=0, le=1, description="share of the clients that attack, at least one")
    strength: float = Field(0.0, ge=0, description="how hard; 0: the kind's own (sign-flip 4, scale 10, noise 5, ...)")

    @property
    def force(self) -> float:
        """The strength that applies."""
        return self.strength or STRENGTH.get(self.kind, 1.0)

    def said(self) -> str:
        """The attack in words, for summaries and tables; nothing when there is none."""
        return "" if self.kind == "none" else f"simulated attack: {self.kind} by {self.share:.0%} of the clients"


class AttackLayer(Layer):
    """Has the attackers among the clients lie."""

    def __init__(self, attack: Attack, seed: int, clients: int, classes: int) -> None:
        self.attack, self.seed, self.clients, self.classes = attack, seed, clients, classes
        self.attackers = attackers(attack, clients, seed)

    def away(self, round_: int) -> set[int]:
        """Who stays away in a burst."""
        return absent(self.attack, self.clients, self.seed, round_)

    def data(self, data: Split, client: int) -> Split:
        """What an attacker trains on."""
        return poisoned(self.attack, data, self.classes) if client in self.attackers else data

    def upload(self, upload: Upload, client: Context) -> Upload:
        """What an attacker sends in place of its upload."""
        if client.client not in self.attackers:
            return upload
        rng = generator(self.seed, "attack", client.round, client.client)
        return forged(self.attack, upload, Broadcast(client.weights, client.knowledge), rng)


def attackers(attack: Attack, clients: int, seed: int) -> set[int]:
    """Who attacks in a run: a draw that depends on the seed alone."""
    if attack.kind == "none":
        return set()
    number = max(1, round(attack.share * clients))
    return set(torch.randperm(clients, generator=generator(seed, "attackers"))[:number].tolist())


def absent(attack: Attack, clients: int, seed: int, round_: int) -> set[int]:
    """Who is away in a round of drop-out bursts: each attacker in every second burst on average, for all of it."""
    if attack.kind != "dropout-bursts":
        return set()
    away = torch.rand(clients, generator=generator(seed, "burst", round_ // BURST)) < 0.5
    return {client for client in attackers(attack, clients, seed) if away[client]}


def poisoned(attack: Attack, data: Split, classes: int) -> Split:
    """What an attacker trains on: with label-flip, class k is called K − 1 − k."""
    return Split(data.images, classes - 1 - data.labels) if attack.kind == "label-flip" else data


def forged(attack: Attack, upload: Upload, sent: Broadcast, rng: torch.Generator) -> Upload:
    """What an attacker sends in place of its upload.

    sign-flip, scale, noise: another move of the weights away from what was sent; BatchNorm's statistics stay, for
    negative variances would be rejected. prototype-shift: the prototype of the next class that the client holds.
    prototype-far: each prototype moved by `strength` times its norm in a random direction. copycat: what the server
    sent, as far as it fits. nan: the first tensor is nothing but NaN.
    """
    if attack.kind in ("sign-flip", "scale", "noise"):
        return replace(upload, weights=_moved(attack, upload.weights, sent.weights, rng))
    if attack.kind == "copycat":
        return _copied(upload, sent)
    if attack.kind == "nan":
        return _with_nan(upload)
    if attack.kind.startswith("prototype") and "prototypes" in upload.knowledge:
        made = _far if attack.kind == "prototype-far" else _shifted
        return upload.with_knowledge(prototypes=made(upload.knowledge, attack.force, rng))
    return upload


def _moved(attack: Attack, weights: Record, origin: Record, rng: torch.Generator) -> Record:
    new: Record = {}
    for name, tensor in weights.items():
        if is_buffer(name) or not tensor.is_floating_point():
            new[name] = tensor
            continue
        start = origin.get(name, torch.zeros_like(tensor))
        move = tensor - start
        if attack.kind == "noise":  # as large in every coordinate as the own move is on average, times the strength
            drawn = torch.randn(tensor.shape, generator=rng, dtype=tensor.dtype)
            new[name] = tensor + attack.force * move.square().mean().sqrt() * drawn
        else:
            new[name] = start + (-attack.force if attack.kind == "sign-flip" else attack.force) * move
    return new


def _copied(upload: Upload, sent: Broadcast) -> Upload:
    """The server's own weights and global prototypes, as if nothing had been learned."""
    weights = {name: sent.weights.get(name, tensor).clone() for name, tensor in upload.weights.items()}
    upload = replace(upload, weights=weights)
    known, own = sent.knowledge.get("global"), upload.knowledge.get("prototypes")
    if known is None or own is None or known.shape != own.shape:
        return upload
    held = (sent.knowledge["present"] > 0).cpu()[:, None]
    return upload.with_knowledge(prototypes=torch.where(held, known.to(own), own))


def _with_nan(upload: Upload) -> Upload:
    weights, knowledge = dict(upload.weights), dict(upload.knowledge)
    for record in (weights, knowledge):
        for name, tensor in record.items():
            if tensor.is_floating_point():
                record[name] = torch.full_like(tensor, torch.nan)
                return replace(upload, weights=weights, knowledge=knowledge)
    return upload


def _far(knowledge: Record, strength: float, rng: torch.Generator) -> Tensor:
    own = knowledge["prototypes"]
    direction = F.normalize(torch.randn(own.shape, generator=rng, dtype=own.dtype), dim=-1)
    length: Tensor = torch.linalg.vector_norm(own, dim=-1, keepdim=True)
    return own + strength * length * direction


def _shifted(knowledge: Record, strength: float, rng: torch.Generator) -> Tensor:
    """Move each prototype that is there towards the next one, and the last towards the first."""
    own = knowledge["prototypes"]
    here = (knowledge["counts"] > 0).nonzero().squeeze(1) if "counts" in knowledge else torch.arange(len(own))
    new = own.clone()
    new[here] = torch.lerp(own[here], own[here.roll(-1)], strength)
    return new
