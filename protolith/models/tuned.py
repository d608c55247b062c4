"""What is trained of a pretrained network: the head alone, the last stage too, or all of it.

What stands still is no tensor of the network that methods train. So nobody copies, sends, guards, averages or keeps it.
Such a network takes what the frozen part made of images, which is computed once.
"""

from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protolith.errors import UserError
from protolith.models.backbones import Backbone, Divided, Encoder
from protolith.models.spec import InputSpec
from protolith.seeds import derive

Tune = Literal["scratch", "head", "last", "all"]
FROZEN: dict[str, Literal["features", "maps"]] = {"head": "features", "last": "maps"}  # what is computed once
SCALE = 20.0  # the length that features get: a head then learns at rates around 0.05


class Above(nn.Module):
    """A head, and a projection below it where one is wanted, on a backbone's features."""

    def __init__(self, backbone: Backbone, classes: int, projection: int = 0, scale: float = 0.0) -> None:
        super().__init__()
        self.backbone: nn.Module | None = None
        self.scale = scale
        if projection:
            self.projection = nn.Sequential(nn.Linear(backbone.length, projection), nn.ReLU())
        self.head = nn.Linear(projection or backbone.length, classes)
        self.spec: InputSpec = backbone.spec
        self.about: dict[str, Any] = {**backbone.about(), "projection": projection, "scale": scale}

    def above(self, features: Tensor) -> Tensor:
        """Features at one length, projected."""
        if self.scale:
            features = self.scale * F.normalize(features, dim=1)
        projection = getattr(self, "projection", None)
        return features if projection is None else cast(Tensor, projection(features))

    def features(self, images: Tensor) -> Tensor:
        """What the head sees."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> Tensor:
        """Classify: one row of logits each."""
        logits: Tensor = self.head(self.features(images))
        return logits


class Pretrained(Above):
    """A whole pretrained network, which takes images."""

    def __init__(self, backbone: Backbone, classes: int, projection: int = 0, scale: float = 0.0) -> None:
        super().__init__(backbone, classes, projection, scale)
        self.backbone = backbone.network

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return self.above(cast(Encoder, self.backbone).features(images))


class OnFeatures(Above):
    """What is above a frozen backbone; it takes the backbone's features."""

    def features(self, images: Tensor) -> Tensor:
        """Project features."""
        return self.above(images)


class OnMaps(Above):
    """The last stage and what is above it; it takes the maps that the stage starts from.

    Its BatchNorms keep their statistics: few images at a client would only blur them.
    """

    def __init__(self, backbone: Backbone, classes: int, projection: int = 0, scale: float = 0.0) -> None:
        super().__init__(backbone, classes, projection, scale)
        self.backbone = upper_half(backbone)

    def features(self, images: Tensor) -> Tensor:
        """Encode maps."""
        return self.above(cast(Divided, self.backbone).upper(images))

    def train(self, mode: bool = True) -> "OnMaps":
        """Train, but leave BatchNorm as it is."""
        super().train(mode)
        for norm in norms_of(self):
            norm.eval()
        return self


def norms_of(network: nn.Module) -> list[nn.Module]:
    """The BatchNorms of a network."""
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


def upper_half(backbone: Backbone) -> nn.Module:
    """A backbone with the parameters of its last stage alone; its buffers are there, but in no record."""
    if (shape := backbone.maps()) is None:
        raise UserError(f"tune = 'last': {backbone.name} does not say where its last stage begins; use head or all.")
    network = backbone.network.requires_grad_(True)
    cast(Divided, network).upper(torch.zeros(1, *shape)).sum().backward()  # type: ignore[no-untyped-call]
    for module in network.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.grad is None:
                delattr(module, name)
            parameter.grad = None
        for name, buffer in list(module.named_buffers(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, buffer, persistent=False)
    return network


NETWORKS: dict[str, type[Above]] = {"scratch": Pretrained, "all": Pretrained, "head": OnFeatures, "last": OnMaps}


def tuned(backbone: Backbone, classes: int, seed: int, tune: Tune, projection: int = 0, scale: float = 0.0) -> Above:
    """The network that methods train, whose weights above the backbone the seed draws."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        return NETWORKS[tune](backbone, classes, projection, scale)
