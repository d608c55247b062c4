"""I2PFL: intra- and inter-domain prototypes (Le et al., Mitigating Domain Shift in Federated Learning, 2025)."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from protolith.losses import apa, class_means, contrast, different_class_partner, mixup_prototypes
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Context, Output
from protolith.methods.registry import Method
from protolith.methods.shown import Shown, clients_of
from protolith.methods.with_prototypes import same_statistics
from protolith.prototypes import CLUSTERS, GLOBAL, ClassMeans, PrototypeSet, average, cluster_per_class, reweight
from protolith.records import Upload
from protolith.seeds import derive


class Params(with_prototypes.Params):
    """Options of I2PFL; the switches are the rows of its Tables 4 to 6 and what the paper leaves open."""

    by_task: ClassVar[dict[str, dict[str, Any]]] = {
        "digits": {"tau": 0.07, "alpha": 0.4, "lambda_intra": 10.0},
        "office10": {"tau": 0.02, "alpha": 0.4, "lambda_intra": 10.0},
        "pacs": {"tau": 0.04, "alpha": 0.2, "lambda_intra": 2.0},
    }

    tau: float = Field(0.07, gt=0, description="temperature of the contrast, Eq. 6; Fig. 6 has .07, .02 and .04 best")
    alpha: float = Field(0.4, gt=0, description="γ of MixUp is drawn from Beta(α, α), Eq. 7; Fig. 6 has .4 best")
    lambda_intra: float = Field(10.0, ge=0, description="weight of APA, Eq. 10, best in Fig. 7; 0: without (Table 4)")
    lambda_inter: float = Field(1.0, ge=0, description="weight of GPCL, Eq. 10, best in Fig. 7; 0: without (Table 4)")
    ema: Literal["new", "past", "off"] = Field(
        "new",
        description="which prototypes get `ema_weight` in Eq. 5: the new ones (as printed), the past ones (as the "
        "text beside it says), or no moving average at all (Table 4)",
    )
    ema_weight: float = Field(0.99, ge=0, le=1, description="β of Eq. 5, the best value of Fig. 8")
    aggregation: Literal["reweight", "average", "cluster"] = Field(
        "reweight", description="generalized prototypes by Eq. 4, as plain means, or as FINCH clusters (Table 5)"
    )
    cap: float = Field(
        0.0,
        ge=0,
        description="most that a client may weigh in Eq. 4, as a multiple of 1/M; 0: no limit, as the paper. Ours: the "
        "farthest prototype weighs most, and the farthest may be a liar's",
    )
    mixup: Literal["feature", "input", "off"] = Field(
        "feature", description="mix features (Eq. 7), images, or nothing (Table 6)"
    )
    scope: Literal["batch", "epoch"] = Field(
        "batch", description="augmented prototypes of the batch (Alg. 1), or of all images as in Eq. 8: last epoch's"
    )
    gamma: Literal["batch", "sample"] = Field("batch", description="one γ for a batch, as MixUp does, or one for each")
    apa: Literal["sample", "class"] = Field(
        "sample", description="h^k of Eq. 9: each feature of the class (it is a set there), or their mean"
    )
    detach: bool = Field(
        True, description="hold the augmented prototypes fixed in Eq. 9; else collapsed classes minimise it too"
    )

    @field_validator("cap")
    @classmethod
    def _feasible(cls, cap: float) -> float:
        if 0 < cap < 1:
            raise ValueError("weights of at most cap / M cannot add up to 1: 0 (off), or 1 and more")
        return cap


class Client(with_prototypes.Client):
    """CE + λ_intra · L_APA + λ_inter · L_GPCL (Eq. 10)."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.beta = np.random.default_rng(derive(context.seed, "mixup"))
        self.epoch = 0
        self.past: ClassMeans | None = None  # augmented prototypes of the epoch before
        self.now: ClassMeans | None = None  # and of this one, so far

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """In the first round there are no generalized prototypes yet, but the augmented ones are local."""
        terms, p = super().loss(batch, out), self.params
        if p.lambda_intra > 0:  # Eq. 9
            augmented, counts = self.augmented(batch, out)
            distance = apa(out.features, batch.labels, augmented, counts, of=p.apa, detach=p.detach)
            terms["apa"] = p.lambda_intra * distance
        if p.lambda_inter > 0 and self.knowledge:  # Eq. 6
            terms["gpcl"] = p.lambda_inter * contrast(out.features, batch.labels, *self._generalized(), p.tau)
        return terms

    def augmented(self, batch: Batch, out: Output) -> tuple[Tensor, Tensor]:
        """The augmented prototypes p̃ [K, d] and their counts (Eq. 8), of this batch or of the last epoch."""
        means, counts = self._mixed(batch, out)
        if self.params.scope == "batch":
            return means, counts
        if batch.epoch > self.epoch or self.now is None:
            self.epoch, self.past = batch.epoch, self.now
            self.now = ClassMeans(self.context.classes, means.shape[1])
        self.now.add(means[batch.labels], batch.labels)  # each class's mean as often as it has samples
        if self.past is None:  # the first epoch of a round has only its batches
            return means, counts
        return self.past.means(means.dtype).to(means.device), self.past.counts.to(means.device)

    def _mixed(self, batch: Batch, out: Output) -> tuple[Tensor, Tensor]:
        """Mix with partners of another class, h̃ = γ h_i + (1 − γ) h_j (Eq. 7), and average by class."""
        classes = self.context.classes
        if self.params.mixup == "off":
            return class_means(out.features, batch.labels, classes)
        alpha, size = self.params.alpha, len(batch.labels)
        drawn = self.beta.beta(alpha, alpha, size if self.params.gamma == "sample" else 1)
        gamma = torch.from_numpy(drawn).to(out.features.dtype).to(self.device).expand(size)
        partner = different_class_partner(batch.labels, self.rng)
        if self.params.mixup == "feature":
            return mixup_prototypes(out.features, batch.labels, classes, gamma, partner)
        share = gamma.to(batch.images).view(-1, 1, 1, 1)
        images = share * batch.images + (1 - share) * batch.images[partner]
        with same_statistics(self.model), torch.set_grad_enabled(not self.params.detach):
            return class_means(self.model.features(images), batch.labels, classes)

    def _generalized(self) -> tuple[Tensor, Tensor]:
        """The generalized prototypes and their classes."""
        known = PrototypeSet.from_record(self.knowledge, CLUSTERS, GLOBAL)
        assert known is not None
        return known.vectors, known.labels


class Server(with_prototypes.Server):
    """Weighs the clients' prototypes by their distance from the mean, and averages over rounds."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then Eqs. 3-5; the number of clusters varies, so that they have no moving average."""
        light = super().aggregate(uploads)
        prototypes, counts = self.received(light)
        beta = self.params.ema_weight
        new_weight = {"new": beta, "past": 1.0 - beta, "off": 1.0}[self.params.ema]  # Eq. 5
        if self.params.aggregation == "cluster":
            self.take_clusters(cluster_per_class(prototypes, counts), light)
        elif self.params.aggregation == "average":
            self.take_global(*average(prototypes, counts), new_weight)  # Eq. 3
        else:
            new, present, weights = reweight(prototypes, counts, self.params.cap)  # Eq. 4
            self.take_global(new, present, new_weight)
            self.made = Shown(weights=weights, weighed=clients_of(light))
        return light


METHOD = Method(
    name="i2pfl",
    title="I2PFL",
    paper="Le et al., Mitigating Domain Shift in Federated Learning via Intra- and Inter-Domain Prototypes, 2025",
    idea="align features with mixed prototypes of their own domain, contrast them with reweighted ones of all domains",
    objective="CE + λ_intra · mean (h − p̃^y)² + λ_inter · L_GPCL; p̃^k = mean of γ h_i + (1 − γ) h_j over class k; "
    "L_GPCL = −log e^{cos(h,g^y)/τ} / Σ_k e^{cos(h,g^k)/τ}",
    server_step="θ as FedAvg; d_m^k = ‖p_m^k − mean_m p_m^k‖², g^k = Σ_m (d_m^k / d^k) p_m^k; G ← β G + (1 − β) G^t",
    traffic="down: weights, K × d prototypes; up: weights, K × d prototypes, K counts",
    passes="one forward and one backward pass per batch; mixup = input: one more forward pass",
    notes="Eq. 5 gives the new prototypes β = 0.99, its text the past ones; the option `ema` has both.",
    params=Params,
    client=Client,
    server=Server,
)
