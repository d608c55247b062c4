"""Several backbones at once: each sees the same images at its own mean and deviation; their features stand in a row."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from protolith.errors import UserError
from protolith.models.encoder import Backbone, Encoder
from protolith.models.spec import InputSpec

MOST = 3


class SideBySide(nn.Module):
    """Encoders side by side. Their input is normalised for the first of them."""

    def __init__(self, networks: Sequence[nn.Module], specs: Sequence[InputSpec]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        for place, spec in enumerate(specs):
            if (spec.mean, spec.std) != (specs[0].mean, specs[0].std):
                factors, terms = recolouring(specs[0], spec)
                self.register_buffer(f"factors{place}", factors, persistent=False)
                self.register_buffer(f"terms{place}", terms, persistent=False)

    def features(self, images: Tensor) -> Tensor:
        """Encode images with each of them: [n, the sum of their lengths]."""
        rows = [cast(Encoder, net).features(self._seen(images, place)) for place, net in enumerate(self.networks)]
        return torch.cat(rows, dim=1)

    def _seen(self, images: Tensor, place: int) -> Tensor:
        """The images as this network wants their colours."""
        factors = getattr(self, f"factors{place}", None)
        return images if factors is None else images * factors + getattr(self, f"terms{place}")


def joint_spec(names: Sequence[str], specs: Sequence[InputSpec]) -> InputSpec:
    """The first one's input; images are decoded once, so the others must fit them into a square as it does."""
    for name, spec in zip(names, specs, strict=True):
        if spec.fit != specs[0].fit:
            raise UserError(
                f"{names[0]} and {name} cannot stand side by side: they want images fitted differently "
                f"({specs[0].fit} and {spec.fit})."
            )
    return specs[0]


def beside(parts: Sequence[Backbone]) -> Backbone:
    """Backbones as one. Names, tags and SHA-256 are joined by +."""
    spec = joint_spec([part.name for part in parts], [part.spec for part in parts])
    return Backbone(
        "+".join(part.name for part in parts),
        "+".join(part.tag for part in parts),
        "+".join(part.sha256 for part in parts),
        spec,
        sum(part.length for part in parts),
        SideBySide([part.network for part in parts], [part.spec for part in parts]).eval(),
        parts=tuple(parts),
    )


def recolouring(first: InputSpec, own: InputSpec) -> tuple[Tensor, Tensor]:
    """Factors and terms that take (x − first mean) / first deviation to (x − own mean) / own deviation."""
    mean, std, own_mean, own_std = (
        torch.tensor(values, dtype=torch.float64).view(1, 3, 1, 1)
        for values in (first.mean, first.std, own.mean, own.std)
    )
    return (std / own_std).float(), ((mean - own_mean) / own_std).float()
