"""What a pretrained backbone is: a network below the head, its input, and the SHA-256 of its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from protolith.errors import UserError
from protolith.models.spec import InputSpec


@runtime_checkable
class Encoder(Protocol):
    """What is below the head: features [n, length] of images [n, 3, h, w]."""

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        ...


@runtime_checkable
class Divided(Encoder, Protocol):
    """An encoder whose last stage can be run alone: features(x) is upper(lower(x))."""

    def lower(self, images: Tensor) -> Tensor:
        """The maps [n, c, h, w] that the last stage starts from."""
        ...

    def upper(self, maps: Tensor) -> Tensor:
        """Features [n, length] of maps."""
        ...


@dataclass(frozen=True)
class Backbone:
    """A network below the head. `imagenet` is the head that its weights came with, where there is one.

    `built` is what its library builds the network from, for a model's file; `parts` are the backbones that it joins.
    """

    name: str
    tag: str
    sha256: str
    spec: InputSpec
    length: int
    network: nn.Module
    imagenet: nn.Linear | None = None
    built: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple["Backbone", ...] = ()

    def about(self) -> dict[str, Any]:
        """What configuration, summary, card and ONNX metadata say of it."""
        said = {
            "name": self.name, "tag": self.tag, "sha256": self.sha256, "input": self.spec.plain(),
            "features": self.length, "parameters": sum(p.numel() for p in self.network.parameters()),
        }  # fmt: skip
        if self.built:
            said["built"] = dict(self.built)
        return {**said, "parts": [part.about() for part in self.parts]} if self.parts else said

    def maps(self) -> tuple[int, ...] | None:
        """The shape [c, h, w] of the maps before the last stage; None where the network has no such place."""
        if not isinstance(self.network, Divided):
            return None
        with torch.inference_mode():
            probe = torch.zeros(1, 3, self.spec.size, self.spec.size)
            return tuple(cast(Divided, self.network.eval()).lower(probe).shape[1:])

    def check(self) -> None:
        """Refuse a network whose features of a grey image are not `length` finite numbers."""
        size = self.spec.size
        try:
            with torch.inference_mode():
                features = cast(Encoder, self.network.eval()).features(torch.zeros(1, 3, size, size))
        except (RuntimeError, ValueError, AssertionError) as error:  # such as a size that its patches do not divide
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"backbone {self.name} does not take images of {size} × {size} pixels: {reason}.") from None
        if tuple(features.shape) != (1, self.length):
            raise UserError(f"backbone {self.name}: its features are {tuple(features.shape)}, not (1, {self.length}).")
        if not bool(torch.isfinite(features).all()):
            raise UserError(f"backbone {self.name}: its features are not finite (NaN or infinite): bad weights.")
