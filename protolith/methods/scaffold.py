"""SCAFFOLD: control variates that take the clients' drift out of their gradients (Karimireddy et al., ICML 2020)."""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import torch
from pydantic import Field
from torch import nn

from protolith.methods import base, fedavg
from protolith.methods.base import Roster, Spec
from protolith.methods.registry import Method
from protolith.records import Broadcast, Record, Upload, clone, under_prefix, with_prefix


class Params(base.Params):
    """Options of SCAFFOLD."""

    server_lr: float = Field(1.0, gt=0, description="server learning rate η_g; 1 as in the paper's experiments")
    average: Literal["images", "equal"] = Field(
        "images",
        description="weights of the clients in θ and c; by images, so that the loss over all images is minimised as by "
        "the other methods, or equally as the paper writes it",
    )


class Client(fedavg.Client):
    """SGD with the gradient g − c_i + c; afterwards c_i is the mean gradient of the round (the paper's option II)."""

    def start(self) -> None:
        """Note where the round begins, and fetch c and c_i (zero at first)."""
        super().start()
        self.parameters: dict[str, nn.Parameter] = dict(self.model.named_parameters())
        self.anchors = {name: p.detach().clone() for name, p in self.parameters.items()}
        remembered = under_prefix("c", self.memory) or {n: torch.zeros_like(a) for n, a in self.anchors.items()}
        self.own = {name: remembered[name].to(self.device) for name in self.parameters}
        self.shared = under_prefix("c", self.knowledge)
        self.correction = {name: self.shared[name] - self.own[name] for name in self.parameters}

    def adjust_gradients(self) -> None:
        """Add c − c_i."""
        for name, parameter in self.parameters.items():
            if parameter.grad is not None:
                parameter.grad += self.correction[name]

    def train(self) -> None:
        """Train, then read the mean gradient off the way that was gone: Δc_i = (x − y_i) / (way of unit steps) − c."""
        super().train()
        way = path(self.terms.steps, self.rate, self.training.momentum)
        self.change = {
            name: (self.anchors[name] - p.detach()) / way - self.shared[name] for name, p in self.parameters.items()
        }

    def upload(self) -> Upload:
        """Weights and Δc_i."""
        return super().upload().with_knowledge(**with_prefix("change", clone(self.change)))

    def remember(self) -> Record:
        """Keep c_i + Δc_i."""
        new = {name: self.own[name] + change for name, change in self.change.items()}
        return {**super().remember(), **with_prefix("c", clone(new))}


class Server(fedavg.Server):
    """Keeps c in `extra`, because it is of no use in an exported model, and sends it with the weights."""

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        self.extra = {f"c/{name}": torch.zeros_like(t) for name, t in weights.items() if self.learns(name)}

    def broadcast(self, client: int) -> Broadcast:
        """Send the weights and c; whatever else is in `extra` stays here."""
        return Broadcast(self.weights, {**self.knowledge, **with_prefix("c", under_prefix("c", self.extra))})

    def schema(self) -> dict[str, Spec]:
        """One change for each parameter."""
        return {f"change/{name}": Spec(tuple(c.shape), c.dtype) for name, c in under_prefix("c", self.extra).items()}

    def weight(self, upload: Upload) -> float:
        """The weight of a client in θ and c."""
        return float(upload.count) if self.params.average == "images" else 1.0

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """x ← x + η_g mean (y_i − x), and c moves by the active clients' share in the mean of all c_i."""
        before, changes = self.weights, self.pooling.averaging()

        def collect() -> Iterator[Upload]:
            for upload in uploads:
                changes.add(under_prefix("change", upload.knowledge), self.weight(upload))
                yield Upload(upload.client, upload.count, upload.weights, {}, upload.metrics)

        light = super().aggregate(collect())
        counts = self.roster.counts
        share = changes.weight / (sum(counts) if self.params.average == "images" else len(counts))
        mean = changes.mean()
        self.extra = {f"c/{name}": self.extra[f"c/{name}"] + share * c for name, c in mean.items()}
        if self.params.server_lr != 1.0:
            moved = {n: torch.lerp(before[n], self.weights[n], self.params.server_lr) for n in mean}
            self.weights = {**self.weights, **moved}
        return light


def path(steps: int, lr: float, momentum: float) -> float:
    """How far SGD goes in so many steps when every gradient is 1; without momentum, steps · lr.

    A gradient g_j acts in its own step and, weaker, in all later ones: in all by lr (1 − β^{K−j+1}) / (1 − β). The
    way gone divided by the sum of these weights is a mean of the gradients, which is what c_i has to be.
    """
    late = momentum * (1 - momentum**steps) / (1 - momentum)
    return lr * (steps - late) / (1 - momentum)


METHOD = Method(
    name="scaffold",
    title="SCAFFOLD",
    paper="Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020",
    idea="replace the client's part of every gradient by everybody's, so that local steps do not drift apart",
    objective="CE, with the gradient g − c_i + c",
    server_step="θ ← θ + η_g Σ w_i (y_i − θ); c ← c + Σ w_i Δc_i; Δc_i = (θ − y_i) / (lr (K − β (1 − β^K) / (1 − β)) "
    "/ (1 − β)) − c",
    traffic="down: weights, c; up: weights, Δc_i (twice FedAvg's)",
    memory="c_i, as large as the parameters",
    notes="With momentum β a gradient acts up to 1 / (1 − β) times; c_i is the mean of the gradients with the weights "
    "with which they acted, and the paper's (x − y_i) / (K lr) without momentum.",
    params=Params,
    client=Client,
    server=Server,
)
