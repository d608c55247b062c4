"""Styles: how the images of a site are coloured, in twelve numbers, and images in other sites' colours."""

from typing import Literal

import torch
from torch import Tensor

from protolith.data.domain import Split

LENGTH = 12  # of a style: mean and deviation, over the images, of three channel means and three channel deviations
LEVEL = 1.0 / 255.0  # one step of a stored pixel; images flatter than this have no contrast to stretch
ROWS = 1024  # images looked at together when a style is taken

# Of nobody's images: grey, of middling contrast, and varying as photographs do.
FIXED = torch.tensor([0.5] * 3 + [0.2] * 3 + [0.2] * 3 + [0.08] * 3)

Draw = Literal["joint", "independent", "mean", "fixed"]


def statistics(images: Tensor) -> Tensor:
    """Channel means and channel deviations of uint8 images [n, h, w, 3] on a scale from 0 to 1: [n, 6]."""
    pixels = images.flatten(1, 2).float() / 255.0
    deviations, means = torch.std_mean(pixels, dim=1, correction=0)
    return torch.cat([means, deviations], dim=1)


def style_of(images: Tensor) -> Tensor:
    """The style of images [n, h, w, 3]: [12], the mean over the images of their statistics, then the deviation."""
    return style_from(torch.cat([statistics(part) for part in torch.split(images, ROWS)]))


def style_of_split(data: Split) -> Tensor:
    """The style of a split, which encoded images have brought with them."""
    return style_of(data.images) if data.colours is None else style_from(data.colours)


def style_from(found: Tensor) -> Tensor:
    """The style of images of these statistics [n, 6]."""
    found = found.double()
    deviations, means = torch.std_mean(found, dim=0, correction=0)
    return torch.cat([means, deviations]).float()


def pooled(styles: Tensor, labels: Tensor) -> Tensor:
    """The style of each cluster [J, 12] of styles [M, 12]: as of all its clients' images, each client counting once."""
    return torch.stack([_pooled(styles[labels == j].double()) for j in range(int(labels.max()) + 1)]).to(styles)


def _pooled(styles: Tensor) -> Tensor:
    means, deviations = styles.chunk(2, dim=1)
    variance = (deviations**2).mean(dim=0) + means.var(dim=0, correction=0)  # within the clients, and between them
    return torch.cat([means.mean(dim=0), variance.sqrt()])


def recolour(images: Tensor, target: Tensor) -> Tensor:
    """Give images [n, h, w, 3] the statistics `target` [n, 6]: pixels from 0 to 255, not yet rounded or clipped."""
    means, deviations = statistics(images).chunk(2, dim=1)
    new_means, new_deviations = target.chunk(2, dim=1)
    scale = new_deviations / deviations.clamp_min(LEVEL)
    shift = new_means - means * scale
    return images.float() * scale[:, None, None, :] + 255.0 * shift[:, None, None, :]


def draw(styles: Tensor, how: Draw, rng: torch.Generator) -> Tensor:
    """Draw the statistics of an image from each style [n, 12]: [n, 6].

    `joint` moves the three channels together (lighter, darker, flatter), `independent` each by itself, which
    also gives colour casts; `mean` draws nothing. `fixed` draws from one style of nobody's instead: what an
    augmentation does that knows no other site.
    """
    means, deviations = (FIXED.expand_as(styles) if how == "fixed" else styles).chunk(2, dim=1)
    if how == "mean":
        return means
    if how == "joint":
        noise = torch.randn(len(styles), 2, generator=rng).repeat_interleave(3, dim=1)
    else:
        noise = torch.randn(len(styles), 6, generator=rng)
    return (means + noise * deviations).clamp(0.0, 1.0)


def exchange(images: Tensor, styles: Tensor, probability: float, how: Draw, rng: torch.Generator) -> Tensor:
    """Re-colour some uint8 images [n, h, w, 3] towards styles [J, 12], each to one of them and by a random amount."""
    n = len(images)
    chosen = torch.rand(n, generator=rng) < probability
    towards = torch.randint(len(styles), (n,), generator=rng)
    target = draw(styles[towards], how, rng)
    amount = torch.rand(n, 1, generator=rng)
    target = torch.lerp(statistics(images), target, amount)
    new = recolour(images, target).round_().clamp_(0, 255).to(torch.uint8)
    return torch.where(chosen.view(-1, 1, 1, 1), new, images)
