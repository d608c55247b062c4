"""FedPLVM: prototypes at two levels of clustering (Wang et al., Taming Cross-Domain Variance, NeurIPS 2024)."""

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from protolith.losses import contrast, cosine_align
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Context, Output, Spec
from protolith.methods.registry import Method
from protolith.methods.shown import shown_clusters
from protolith.prototypes import CLUSTERS, SENT_SEVERAL, PrototypeSet, class_means_of, cluster_points
from protolith.records import Record, Upload


class Params(with_prototypes.Params):
    """Options of FedPLVM."""

    proto_pass: Literal["last_epoch_train", "eval_pass"] = Field(
        "eval_pass", description="features to cluster: of a pass after training (authors' code), or the last epoch's"
    )
    alpha: float = Field(0.25, gt=0, le=1, description="exponent of the cosine in the contrast; the authors' default")
    tau: float = Field(0.07, gt=0, description="temperature of the contrast; the authors' default")
    weight: float = Field(1.0, ge=0, description="weight λ of both terms; 1 to compare with FPL, the authors have 100")
    correction: bool = Field(True, description="the term L_cor; off: the contrast alone")
    partition: Literal["last", "first"] = Field("last", description="which FINCH partition; the authors use the last")
    models: Literal["equal", "size"] = Field(
        "equal", description="average models alike (the authors' code where labels are balanced), or by size as FedAvg"
    )


class Client(with_prototypes.Client):
    """CE + λ (L_α + L_cor); clusters its own features by class."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """CE alone in the first round."""
        terms, p = super().loss(batch, out), self.params
        if (known := PrototypeSet.from_record(self.knowledge, CLUSTERS)) and p.weight > 0:
            apart = contrast(out.features, batch.labels, known.vectors, known.labels, p.tau, sharpness=p.alpha)
            terms["alpha"] = p.weight * apart
            if p.correction:
                means = class_means_of(known.vectors, known.labels, self.context.classes)
                terms["cor"] = p.weight * cosine_align(out.features, batch.labels, *means)
        return terms

    def _collect(self, features: Tensor, labels: Tensor) -> None:
        self.seen.append((features.detach().cpu(), labels.cpu()))

    def prototypes(self) -> Record:
        """The cluster means of each class, any number of them."""
        features, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        found = cluster_points(features, labels, self.params.partition)
        return PrototypeSet(found.prototypes, found.labels).to_record(SENT_SEVERAL)


class Server(with_prototypes.Server):
    """Clusters all clients' clusters of a class."""

    def schema(self) -> dict[str, Spec]:
        """Any number of prototypes, with their classes."""
        classes = Spec(("prototypes",), torch.int64, least=0, most=self.roster.classes - 1)
        return {"prototypes": Spec(("prototypes", self.roster.features)), "labels": classes}

    def weight(self, upload: Upload) -> float:
        """One for every client, or its number of images."""
        return 1.0 if self.params.models == "equal" else super().weight(upload)

    def problem(self, upload: Upload) -> str | None:
        """A client with images has clusters, and never more of them than images."""
        number = len(upload.knowledge["labels"])
        if not 0 < number <= upload.count:
            return f"sends {number} prototypes of {upload.count} images"
        return super().problem(upload)

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then cluster the union; a class that nobody sent keeps its clusters."""
        light = super().aggregate(uploads)
        points, labels = (torch.cat([upload.knowledge[name] for upload in light]) for name in ("prototypes", "labels"))
        senders = torch.cat([torch.full_like(upload.knowledge["labels"], upload.client) for upload in light])
        points = self.pooling.within_reach(points, labels, senders)
        found = cluster_points(points, labels, self.params.partition)
        self.take_clusters(found)
        self.made = shown_clusters(found, senders)
        return light


METHOD = Method(
    name="fedplvm",
    title="FedPLVM",
    paper="Wang et al., Taming Cross-Domain Representation Variance in Federated Prototype Learning, NeurIPS 2024",
    idea="cluster features on the clients and prototypes on the server; contrast with a softened cosine",
    objective="CE + λ (L_α + L_cor); L_α = −log Σ_{c∈P^y} e^{cos^α(z,c)/τ} / Σ_{c∈P} e^{cos^α(z,c)/τ}; "
    "L_cor = 2 · mean (1 − cos(z, mean P^y))²",
    server_step="θ = mean of θ_m; per class FINCH on the union of the clients' clusters",
    traffic="down: weights, C clusters of d and their classes; up: weights, the client's own clusters, at most "
    "max(1, ⌊n_m^k/2⌋) for each class k that it holds, and their classes",
    passes="one forward and one backward pass per batch; one forward pass over all images after training",
    params=Params,
    client=Client,
    server=Server,
)
