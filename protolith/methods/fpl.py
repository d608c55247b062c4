"""FPL: federated prototype learning (Huang et al., Rethinking Federated Learning with Domain Shift, CVPR 2023)."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field
from torch import Tensor

from protolith.losses import align, contrast
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method
from protolith.prototypes import CLUSTERS, GLOBAL, PrototypeSet, average, class_means_of, cluster_per_class
from protolith.records import Upload


class Params(with_prototypes.Params):
    """Options of FPL; the switches are the rows of its Tables 1 and 3."""

    tau: float = Field(0.02, gt=0, description="temperature of the contrast, Eq. 8")
    cpcl: Literal["cluster", "global", "off"] = Field(
        "cluster", description="contrast with cluster prototypes, with plain global ones (Table 3, G), or not at all"
    )
    upcr: Literal["unbiased", "global", "off"] = Field(
        "unbiased", description="align with unbiased prototypes, with plain global ones (Table 3, G), or not at all"
    )
    partition: Literal["last", "first"] = Field(
        "last", description="which FINCH partition; Eq. 4 describes the first, the authors' code uses the last"
    )
    reduction: Literal["mean", "sum"] = Field(
        "mean", description="Eq. 10 sums over the dimensions, the code takes the mean; the sum swamps cross-entropy"
    )


class Client(with_prototypes.Client):
    """CE + L_CPCL + L_UPCR, all with weight 1."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Nothing to contrast or align with in the first round."""
        terms = super().loss(batch, out)
        if not CLUSTERS.is_in(self.knowledge):
            return terms
        form = {"cluster": CLUSTERS, "global": GLOBAL}.get(self.params.cpcl)
        if form and (known := PrototypeSet.from_record(self.knowledge, form)):  # Eq. 8
            terms["cpcl"] = contrast(out.features, batch.labels, known.vectors, known.labels, self.params.tau)
        if self.params.upcr != "off":  # Eq. 10
            terms["upcr"] = align(out.features, batch.labels, *self._targets(), reduction=self.params.reduction)
        return terms

    def _targets(self) -> tuple[Tensor, Tensor]:
        """U^k, the mean of the class's cluster prototypes (Eq. 6), or the plain mean of the clients' prototypes."""
        k = self.knowledge
        if self.params.upcr == "global":
            return k[GLOBAL.vectors], k[GLOBAL.beside]
        return class_means_of(k[CLUSTERS.vectors], k[CLUSTERS.beside], self.context.classes)


class Server(with_prototypes.Server):
    """Clusters the clients' prototypes of each class with FINCH (Eqs. 4-5)."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then cluster; a class that nobody sent keeps its clusters."""
        light = super().aggregate(uploads)
        prototypes, counts = self.received(light)
        self.take_clusters(cluster_per_class(prototypes, counts, self.params.partition), light)
        if "global" in (self.params.cpcl, self.params.upcr):
            self.take_global(*average(prototypes, counts))  # Eq. 3
        return light


METHOD = Method(
    name="fpl",
    title="FPL",
    paper="Huang et al., Rethinking Federated Learning with Domain Shift: A Prototype View, CVPR 2023",
    idea="contrast features with cluster prototypes, and align them with the unbiased mean of the clusters",
    objective="CE + L_CPCL + L_UPCR; L_CPCL = −log Σ_{c∈P^y} e^{cos(z,c)/τ} / Σ_{c∈P} e^{cos(z,c)/τ}; "
    "L_UPCR = mean (z − U^y)²",
    server_step="θ as FedAvg; per class FINCH on {p_m^k}: P^k = cluster means, U^k = mean of P^k",
    traffic="down: weights, at most max(1, ⌊M/2⌋) × d per class; up: weights, K × d prototypes, K counts",
    notes="Log-sum-exp keeps τ = 0.01 finite, where the paper reports NaN.",
    params=Params,
    client=Client,
    server=Server,
)
