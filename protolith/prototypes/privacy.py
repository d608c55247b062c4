"""Class prototypes with noise: what one image can change is bounded by clipping and hidden in Gaussian noise."""

import math
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from protolith.devices import exact
from protolith.prototypes.means import sent_means
from protolith.seeds import generator

Draw = Callable[[Sequence[int]], Tensor]  # standard normal numbers of a shape

# One image more or less changes one class's (sum / clip, count) by at most (1, 1): √2 in L2.
SENSITIVITY = math.sqrt(2.0)


class Privacy(BaseModel):
    """How the prototypes that a client sends are protected; the weights are not."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    noise: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="noise on class sums and counts: its standard deviation over what one image can change; 0: none",
    )
    clip: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="length (L2) to which longer feature vectors are scaled before they are added up; 0: no bound",
    )
    least: int = Field(1, ge=1, description="classes with fewer images (with noise: by the noisy count) are not sent")
    delta: float = Field(1e-5, gt=0, lt=1, description="the δ for which ε is reported; well below 1 / images")

    @model_validator(mode="after")
    def _bounded(self) -> "Privacy":
        if self.noise > 0 and self.clip == 0:
            raise ValueError("noise needs clip, a bound on the length of a feature vector, such as clip = 5")
        return self

    @property
    def asked(self) -> bool:
        """Tell whether anything is to be protected."""
        return self.noise > 0 or self.clip > 0 or self.least > 1


def clipped(features: Tensor, clip: float) -> Tensor:
    """Scale feature vectors [B, d] that are longer than `clip` down to it; with 0, leave all as they are."""
    if clip == 0:
        return features
    points = exact(features)
    lengths = torch.linalg.vector_norm(points, dim=1, keepdim=True)
    scale: Tensor = torch.clamp_max(clip / lengths, 1.0)
    return points * scale


def private_totals(sums: Tensor, counts: Tensor, privacy: Privacy, draw: Draw) -> tuple[Tensor, Tensor]:
    """Class sums of clipped features [K, d] and counts [K] with noise; the count 0 is of a class that is not sent.

    Everything after the noise, also which classes are left out, is computed from noisy numbers alone. A threshold
    on the true count would give away whether the one image that decides it is there.
    """
    sums, shown = sums.double(), counts.double()
    if privacy.noise > 0:
        scale = privacy.noise * SENSITIVITY
        sums = sums + scale * privacy.clip * draw(sums.shape)
        shown = shown + scale * draw(shown.shape)
    return sums, torch.where(shown >= privacy.least, shown, 0.0)


def private_means(sums: Tensor, counts: Tensor, privacy: Privacy, draw: Draw) -> tuple[Tensor, Tensor]:
    """The prototypes [K, d] and counts [K] that are sent, from class sums of clipped features and counts."""
    return sent_means(*private_totals(sums, counts, privacy, draw))


def seeded_noise(*parts: int | str) -> Draw:
    """Noise that the seed decides, for simulations: who knows the seed can take it off again."""
    rng = generator(*parts)
    return lambda shape: torch.randn(tuple(shape), generator=rng, dtype=torch.float64)


def secret_noise(shape: Sequence[int]) -> Tensor:
    """Noise from the operating system's generator, which nobody can draw again.

    Not a torch.Generator with a random seed: of its seed only 32 bits count, which can all be tried.
    """
    from scipy.special import ndtri  # 10 MB that only those pay who want noise

    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64)
    uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53  # never 0 or 1
    return torch.from_numpy(np.asarray(ndtri(uniform))).reshape(tuple(shape))
