"""COPA: one shared encoder that suits every client's head (Wu and Gong, ICCV 2021)."""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Output, Roster
from protolith.methods.registry import Method, classify
from protolith.models.saved import load_weights
from protolith.records import Record, Upload, clone, under_prefix, with_prefix


class Params(base.Params):
    """Options of COPA."""

    initial_heads: bool = Field(
        False,
        description="also classify with the heads of clients that have not trained yet, as the only public code does; "
        "off, because fitting the encoder to random heads is not what the paper means by collaboration",
    )


class Client(fedavg.Client):
    """Minimises CE with its own head and, through the encoder alone, with the other clients' frozen heads."""

    shapes_features = True

    def start(self) -> None:
        """Take the shared encoder and this client's own head."""
        super().start()
        heads, me = under_prefix("heads", self.knowledge), self.context.client
        load_weights(self.model.head, {name: tensor[me] for name, tensor in heads.items()})
        use = torch.ones_like(self.knowledge["trained"]) if self.params.initial_heads else self.knowledge["trained"]
        others = torch.cat([use[:me], torch.zeros_like(use[:1]), use[me + 1 :]])
        self.others = {name: tensor[others] for name, tensor in heads.items()}

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """CE(g_m(f(x)), y) + Σ_{j≠m} CE(ḡ_j(f(x)), y)."""
        terms = super().loss(batch, out)
        if count := len(self.others["weight"]):
            logits = classify_with(self.others, out.features).flatten(0, 1)
            terms["others"] = count * F.cross_entropy(logits, batch.labels.repeat(count))
        return terms


class Server(fedavg.Server):
    """Averages the encoders and collects the heads: row m of `heads` is client m's last one."""

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        clients = len(roster.counts)
        heads = {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in head_of(weights).items()}
        self.knowledge = {**with_prefix("heads", heads), "trained": torch.zeros(clients, dtype=torch.bool)}

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average everything (the mean head is for programs that know of one head only), and keep each head."""
        sent: list[Record] = []

        def collect() -> Iterator[Upload]:
            for upload in uploads:
                sent.append(clone(head_of(upload.weights)))
                yield upload

        light = super().aggregate(collect())
        new = clone(self.knowledge)
        clients = [upload.client for upload in light]
        for name in head_of(self.weights):
            new[f"heads/{name}"][clients] = self.pooling.moderate(torch.stack([head[name] for head in sent]))
        new["trained"][clients] = True
        self.knowledge = new
        return light


def head_of(weights: Record) -> Record:
    """Take the head's tensors, named as in the head alone."""
    return {name.removeprefix("head."): tensor for name, tensor in weights.items() if name.startswith("head.")}


def classify_with(heads: Record, features: Tensor) -> Tensor:
    """Logits [H, B, K] of features [B, d] by H linear heads."""
    return torch.einsum("bd,hkd->hbk", features, heads["weight"]) + heads["bias"][:, None]


def ensemble(model: nn.Module, images: Tensor, knowledge: Record) -> Tensor:
    """Log of the mean of the trained heads' probabilities; the network's own head when none has been trained."""
    trained = knowledge["trained"]
    if not bool(trained.any()):
        return classify(model, images, knowledge)
    heads = {name: tensor[trained] for name, tensor in under_prefix("heads", knowledge).items()}
    features: Tensor = model.features(images)  # type: ignore[operator]
    shares = torch.log_softmax(classify_with(heads, features), dim=2)
    return torch.logsumexp(shares, dim=0) - math.log(len(shares))


METHOD = Method(
    name="copa",
    title="COPA",
    paper="Wu and Gong, Collaborative Optimization and Aggregation for Decentralized Domain Generalization and "
    "Adaptation, ICCV 2021",
    idea="an encoder whose features every client's own head can classify; all heads vote at test time",
    objective="CE(g_m(f(x)), y) + Σ_{j≠m} CE(ḡ_j(f(x)), y), ḡ_j the other clients' frozen heads",
    server_step="f ← Σ_m (n_m / n) f_m; the heads are collected, not averaged",
    traffic="down: weights, M heads of K × (d + 1); up: weights",
    passes="one forward and one backward pass per batch; M heads instead of one",
    accuracy="of the averaged encoder with the mean of all heads' probabilities",
    notes="BatchNorm is kept; the paper's hybrid of batch and instance normalisation is not built.",
    params=Params,
    client=Client,
    server=Server,
    predict=ensemble,
)
