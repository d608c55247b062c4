"""FedAPC: augmented prototype contrast (Le et al., Robust Federated Learning on Edge Devices, 2025)."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from protolith.data.augment import crop, erase, flip, one_view
from protolith.losses import contrast
from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Output
from protolith.methods.registry import Method
from protolith.methods.with_prototypes import same_statistics
from protolith.models.spec import spec_of
from protolith.prototypes import GLOBAL, PrototypeSet, average
from protolith.records import Upload


class Params(with_prototypes.Params):
    """Options of FedAPC."""

    by_task: ClassVar[dict[str, dict[str, Any]]] = {
        "digits": {"tau": 0.07},
        "office10": {"tau": 0.02},
        "pacs": {"tau": 0.04},
    }

    proto_pass: Literal["last_epoch_train", "eval_pass"] = Field(
        "eval_pass",
        description="augmented prototypes in a pass in evaluation mode after training (as the text says), or batch by "
        "batch in the last epoch (as Alg. 1, line 14, prints it)",
    )
    tau: float = Field(
        0.07, gt=0, description="temperature of the contrast, Eq. 5; the paper gives none: the authors' I2PFL values"
    )
    views: int = Field(3, ge=1, description="N of Eq. 2, augmented views of an image; the paper gives no number")
    augment: bool = Field(True, description="average over augmented views; off: N = 1 plain image (Table II)")


class Client(with_prototypes.Client):
    """CE + L_APC (Eq. 6), and prototypes of augmented images."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Nothing to contrast with in the first round."""
        terms = super().loss(batch, out)
        if known := PrototypeSet.from_record(self.knowledge, GLOBAL):  # Eq. 5
            terms["apc"] = contrast(out.features, batch.labels, known.vectors, known.labels, self.params.tau)
        return terms

    def observe(self, batch: Batch, out: Output) -> None:
        """Collect augmented views of the last epoch's batches where the option says so."""
        if not self.params.augment:
            super().observe(batch, out)
        elif self.params.proto_pass == "last_epoch_train" and batch.epoch == self.training.epochs - 1:
            with torch.no_grad(), same_statistics(self.model):
                self._collect(self.look_at(self.data.images[batch.rows]), batch.labels)

    def look_at(self, images: Tensor) -> Tensor:
        """z̄, the mean feature of N views of each image (Eqs. 2-3)."""
        if not self.params.augment:
            return super().look_at(images)
        look = super().look_at
        return torch.stack([look(self.view(images)) for _ in range(self.params.views)]).mean(dim=0)

    def view(self, images: Tensor) -> Tensor:
        """A(x): crop every image; mirror and erase half of them, independently. Of encoded ones a view is drawn."""
        if images.is_floating_point():
            return one_view(images, self.rng)
        padding = max(1, images.shape[1] // 8)  # 4 pixels of 32, as in training
        seen = flip(crop(images, self.rng, padding), self.rng)
        return erase(seen, self.rng, colour=spec_of(self.model).mean)


class Server(with_prototypes.Server):
    """Averages the augmented prototypes; Eq. 4 prints their sum, whose cosines are the same."""

    def aggregate(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Average models, then prototypes; a class that nobody sent keeps its prototype."""
        light = super().aggregate(uploads)
        self.take_global(*average(*self.received(light)))  # Eq. 4
        return light


METHOD = Method(
    name="fedapc",
    title="FedAPC",
    paper="Le et al., Robust Federated Learning on Edge Devices with Domain Heterogeneity, 2025",
    idea="contrast features with class prototypes that were averaged over augmented views of the images",
    objective="CE + L_APC; L_APC = −log e^{cos(z,G^y)/τ} / Σ_k e^{cos(z,G^k)/τ}",
    server_step="θ as FedAvg; G^k = mean over the clients that have class k of p̄_m^k, "
    "p̄_m^k = mean over images and N views",
    traffic="down: weights, K × d prototypes; up: weights, K × d prototypes, K counts",
    passes="one forward and one backward pass per batch; N forward passes over all images after training",
    notes="N, τ and the number of local epochs are not in the paper.",
    params=Params,
    client=Client,
    server=Server,
)
