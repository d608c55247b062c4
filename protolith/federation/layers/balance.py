"""Balance: models are averaged so that every pseudo-domain, a group of clients with one style, has the same weight."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from protolith.federation.layers.base import Layer
from protolith.federation.layers.robust import ALIKE, RobustLayer
from protolith.federation.layers.styles import StylesLayer
from protolith.methods.fedavg import Server
from protolith.methods.registry import Method
from protolith.records import Upload


class BalanceLayer(Layer):
    """Says what each model counts as; whose style is whose the layer of styles knows."""

    def __init__(self, styles: StylesLayer) -> None:
        self.styles = styles

    def refuses(self, method: Method, params: Any, beside: Sequence[Layer]) -> str | None:
        """A server that weighs models in its own way would not hear of it, and some rules count all alike."""
        if method.server.counts_by != "weight" or method.server.weight is not Server.weight:
            return f"training.style_balance is not for {method.name}, which does not average models by images."
        rules = [layer.kind for layer in beside if isinstance(layer, RobustLayer) and layer.kind in ALIKE]
        if rules:
            why = "weights that make every style count alike would have no effect"
            return f"robust = '{rules[0]}' is not for {method.name}: {why}."
        return None

    def receive(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """Weigh with the pseudo-domains of the rounds before: those of this one are known when all uploads are."""
        images, cluster = images_by_domain(self.styles.images_of, self.styles.cluster), self.styles.cluster
        return map(lambda upload: replace(upload, counts_as=weight(upload, images, cluster)), uploads)


def weight(upload: Upload, images: Tensor, cluster: Tensor) -> float:
    """n_m / n_j(m): a client's share in its pseudo-domain; the mean divides by the number of domains.

    A client whose style is not known yet counts as if its pseudo-domain were of average size: in the first round
    all clients do, which is FedAvg.
    """
    own = int(cluster[upload.client])
    return upload.count / float(images[own] if own >= 0 else images.mean())


def images_by_domain(counts: Tensor, cluster: Tensor) -> Tensor:
    """The number of images of each pseudo-domain [J]; 1 where none is known."""
    known = cluster >= 0
    if not known.any():
        return torch.ones(1, dtype=torch.float64)
    return torch.bincount(cluster[known], weights=counts[known].double())
