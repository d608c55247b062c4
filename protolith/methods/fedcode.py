"""FedCode: contrastive feature decoupling (Zhang et al., Addressing Federated Domain Shift, 2025)."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from protolith.losses import contrast, orthogonality
from protolith.methods import with_prototypes, with_style
from protolith.methods.base import Batch, Output, Roster, Spec
from protolith.methods.fedavg import stacked
from protolith.methods.registry import Method
from protolith.methods.shown import Shown
from protolith.methods.with_style import Decoupled
from protolith.prototypes import GLOBAL, PrototypeSet, average, cluster_means, finch
from protolith.records import Broadcast, Record, Upload


class Params(with_style.Params):
    """Options of FedCode; the switches are the rows of its Tables 5 and 6 and its Figs. 6 and 7."""

    by_task: ClassVar[dict[str, dict[str, Any]]] = {"pacs": {"alpha": 100.0}}

    alpha: float = Field(20.0, ge=0, description="weight of both contrasts, Eq. 16; Fig. 8: 20 on Digit5, 100 on PACS")
    beta: float = Field(1.0, ge=0, description="weight of FDR, Eq. 16, the paper's value; 0: without (Tables 5, 6)")
    tau: float = Field(
        0.2,
        gt=0,
        description="temperature, Eq. 10; the paper gives none: the best of three on images of office10 that no client "
        "trains on, a task that the tables report too",
    )
    semcl: bool = Field(True, description="the semantic contrast, Eq. 11; off: a row of Tables 5 and 6")
    stycl: bool = Field(True, description="the style contrast, Eq. 13; off: a row of Tables 5 and 6")
    share_head: bool = Field(False, description="average the classifier too (Fig. 7); the paper keeps it local")
    stop_gradient: bool = Field(
        False, description="hold the other encoder's feature fixed; Alg. 1 has one loss for all"
    )
    partition: Literal["last", "first"] = Field("last", description="which FINCH partition; the last, as FPL's code")


class Client(with_style.Client):
    """CE + α (L_SemCL + L_StyCL) + β L_FDR (Eq. 16); the style encoder and the head stay here."""

    def keeps(self, name: str) -> bool:
        """Keep the head, unless it is shared."""
        return super().keeps(name) or (is_head(name) and not self.params.share_head)

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Without prototypes, in the first round, CE and FDR; without a cluster of its own, no style contrast."""
        assert isinstance(out, Decoupled)
        terms, p, k = super().loss(batch, out), self.params, self.knowledge
        if p.beta > 0:  # Eq. 14
            terms["fdr"] = p.beta * orthogonality(out.style, out.features)
        if p.alpha == 0 or (known := PrototypeSet.from_record(k, GLOBAL)) is None:
            return terms
        meanings, labels = known.vectors, known.labels
        if p.semcl:  # Eq. 11
            terms["semcl"] = p.alpha * contrast(
                out.features, batch.labels, meanings, labels, p.tau, extra_negatives=self._other(out.style, k["styles"])
            )
        if p.stycl and "cluster" in k:  # Eq. 13
            own, clusters = k["cluster"].expand(len(out.style)), torch.arange(len(k["styles"]), device=self.device)
            terms["stycl"] = p.alpha * contrast(
                out.style, own, k["styles"], clusters, p.tau, extra_negatives=self._other(out.features, meanings)
            )
        return terms

    def _other(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """The other space's negatives [B, 2, d]: the sample's feature there and the centre of the prototypes there."""
        features = features.detach() if self.params.stop_gradient else features
        return torch.stack([features, prototypes.to(features).mean(dim=0).expand_as(features)], dim=1)


class Server(with_prototypes.Server):
    """Averages semantic encoders and prototypes, clusters style prototypes."""

    def __init__(self, params: Any, weights: Record, roster: Roster) -> None:
        super().__init__(params, weights, roster)
        clients = len(roster.counts)  # their last style prototypes, and the clusters of these; -1: never heard of
        self.extra = {"styles": torch.zeros(clients, roster.features), "cluster": torch.full((clients,), -1)}
        self._encoder: tuple[Record, Record] = ({}, {})

    def schema(self) -> dict[str, Spec]:
        """One style prototype more."""
        return {**super().schema(), "style": Spec((self.roster.features,))}

    def broadcast(self, client: int) -> Broadcast:
        """Tell a client its cluster; the head goes to newcomers only, unless it is shared."""
        if (cluster := self.extra["cluster"][client]) < 0:
            return super().broadcast(client)
        if self._encoder[0] is not self.weights:  # one record for all clients, so that engines write it once
            sent = {name: t for name, t in self.weights.items() if self.params.share_head or not is_head(name)}
            self._encoder = (self.weights, sent)
        return Broadcast(self._encoder[1], {**self.knowledge, "cluster": cluster.clone()})

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average encoders (and heads, for a global model to test), then Eqs. 4 and 9.

        All clients' last styles are clustered, so that one who was away still has a cluster of its own.
        """
        light = super().aggregate(uploads)
        self.take_global(*average(*self.received(light)))
        styles, cluster = self.extra["styles"].clone(), self.extra["cluster"].clone()
        senders = [upload.client for upload in light]
        styles[senders], cluster[senders] = self.pooling.moderate(stacked(light, "style")), 0
        known = cluster >= 0
        cluster[known] = finch(styles[known], self.params.partition)
        self.extra = {"styles": styles, "cluster": cluster}
        self.made = Shown(style_groups=cluster)
        self.knowledge = {**self.knowledge, "styles": cluster_means(styles[known], cluster[known])}
        return light


def is_head(name: str) -> bool:
    """Tell whether a weight belongs to the classifier."""
    return name.startswith("head.")


METHOD = Method(
    name="fedcode",
    title="FedCode",
    paper="Zhang et al., FedCode: Addressing Federated Domain Shift by Contrastive Feature Decoupling, 2025",
    idea="learn style and meaning with two encoders, contrast each with its own prototypes, share the second",
    objective="CE + α (L_SemCL + L_StyCL) + β Σ_v |z^s_v z^c_v| / (‖z^s‖ ‖z^c‖); L_SemCL contrasts z^c with G, z^s and "
    "mean P; L_StyCL contrasts z^s with P, z^c and mean G",
    server_step="encoder as FedAvg; G^k = mean over the clients of c_m^k; P = cluster means of FINCH on {s_m}",
    traffic="down: semantic encoder, K × d and J × d prototypes, a cluster index (the head once); "
    "up: semantic encoder, head (only to test a global model), K × d prototypes, K counts, one style prototype",
    passes="two networks: two forward and two backward passes per batch; both pass over all images after training",
    memory="style encoder and head",
    accuracy="of the averaged semantic encoder with the mean of the clients' heads, which no client uses",
    notes="Protocol `local` tests what the paper's tables do: each client's own encoder and head.",
    params=Params,
    client=Client,
    server=Server,
)
