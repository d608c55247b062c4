"""FPL's losses as loops over samples and MOON's as three recorded passes, as in public code: for comparison only."""

import torch
import torch.nn.functional as F
from torch import Tensor

from protolith.losses import model_contrast
from protolith.methods import fedavg, fpl, moon, with_prototypes
from protolith.methods.base import Batch, Output


class SlowFPL(fpl.Client):
    """The same objective, one sample after the other."""

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy, and for every sample its contrast and its alignment."""
        terms = with_prototypes.Client.loss(self, batch, out)
        if "clusters" not in self.knowledge:
            return terms
        clusters, of_class = self.knowledge["clusters"], self.knowledge["cluster_labels"]
        terms["cpcl"], terms["upcr"] = per_sample(out.features, batch.labels, clusters, of_class, self.params.tau)
        return terms


def per_sample(
    features: Tensor, labels: Tensor, clusters: Tensor, of_class: Tensor, tau: float
) -> tuple[Tensor, Tensor]:
    """FPL's contrast and alignment, one sample after the other."""
    contrasts, distances = [], []
    for feature, label in zip(features, labels, strict=True):
        mine = of_class == label
        scores = F.cosine_similarity(feature.unsqueeze(0), torch.cat([clusters[mine], clusters[~mine]])) / tau
        contrasts.append(torch.logsumexp(scores, 0) - torch.logsumexp(scores[: int(mine.sum())], 0))
        distances.append(F.mse_loss(feature, clusters[mine].mean(0)))
    return torch.stack(contrasts).mean(), torch.stack(distances).mean()


class SlowMOON(moon.Client):
    """The same objective, with autograd recording the two other networks' passes too."""

    def start(self) -> None:
        """Set up the other networks as if they were to be trained."""
        super().start()
        for net in self.frozen:
            net.requires_grad_(True)

    def loss(self, batch: Batch, out: Output) -> dict[str, Tensor]:
        """Cross-entropy and the contrast; the other networks' features are cut off afterwards."""
        terms = fedavg.Client.loss(self, batch, out)
        other, previous = (net.features(batch.images).detach() for net in self.frozen)
        terms["con"] = self.params.mu * model_contrast(out.features, other, previous, self.params.tau)
        return terms
