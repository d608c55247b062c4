"""Views: altered copies of training images, drawn once and frozen, so that features can be augmented."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from protolith.data.styles import FIXED, recolour
from protolith.errors import UserError, unknown
from protolith.seeds import generator

VERSION = 1  # raise it when a view of the same image comes out differently
MOST = 100  # copies of an image
DRAWN = 11  # uniform numbers for one view of one image: 4 of a crop, 1 of a mirror, 6 of colours
AREA, RATIO = (0.7, 1.0), (3 / 4, 4 / 3)  # of a crop: its share of the image, and how its sides change
LUMA = (0.299, 0.587, 0.114)
INK = 4.0  # a line is black where the slope is so many times the image's mean slope


@dataclass(frozen=True)
class Views:
    """How many copies of every training image are encoded beside the image itself, and of which kinds in turn.

    From the second turn on, each kind is applied to a random crop that may be mirrored.
    """

    count: int = 0
    kinds: tuple[str, ...] = ("crop", "mirror", "colour", "grey", "edges")

    def __post_init__(self) -> None:
        if not 0 <= self.count <= MOST:
            raise UserError(f"views must be from 0 to {MOST}, not {self.count}.")
        for kind in self.kinds:
            if kind not in KINDS:
                raise unknown("kind of view", kind, KINDS)
        if self.count and not self.kinds:
            raise UserError(f"{self.count} views of no kind: name one of {', '.join(KINDS)}.")

    @property
    def named(self) -> tuple[str, ...]:
        """The kind of each view."""
        return tuple(self.kinds[view % len(self.kinds)] for view in range(self.count))

    def draw(self, domain: str, count: int) -> Tensor:
        """The random numbers [views, n, 11] of the views of a domain's training images.

        They follow from the domain's name, the image's row and the view alone: a site by itself draws the same.
        """
        tables = [
            torch.rand(count, DRAWN, generator=generator("view", VERSION, domain, view)) for view in range(self.count)
        ]
        return torch.stack(tables) if tables else torch.empty(0, count, DRAWN)

    def of(self, images: Tensor, numbers: Tensor) -> Tensor:
        """Images uint8 [n, h, w, 3] with their views: [n, 1 + views, h, w, 3]; the image itself comes first."""
        made = [images]
        for view, kind in enumerate(self.named):
            drawn = numbers[view]
            made.append(KINDS[kind](_varied(images, drawn) if view >= len(self.kinds) else images, drawn))
        return torch.stack(made, dim=1)


def crop(images: Tensor, drawn: Tensor) -> Tensor:
    """A random part of each image, of 0.7 to 1 of its area, at the image's size."""
    area = AREA[0] + drawn[:, 0] * (AREA[1] - AREA[0])
    ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** drawn[:, 1]
    wide, high = (area * ratio).sqrt().clamp(max=1.0), (area / ratio).sqrt().clamp(max=1.0)
    zero = torch.zeros_like(wide)
    right, down = (1 - wide) * (2 * drawn[:, 2] - 1), (1 - high) * (2 * drawn[:, 3] - 1)
    where = torch.stack([wide, zero, right, zero, high, down], dim=1).view(-1, 2, 3)
    planes = images.permute(0, 3, 1, 2).float()
    grid = F.affine_grid(where, list(planes.shape), align_corners=False)
    return _pixels(F.grid_sample(planes, grid, padding_mode="border", align_corners=False).permute(0, 2, 3, 1))


def mirror(images: Tensor, _: Tensor) -> Tensor:
    """Each image, left to right."""
    return images.flip(2)


def colour(images: Tensor, drawn: Tensor) -> Tensor:
    """Each image with the colour statistics of a broad style that is nobody's."""
    means, deviations = FIXED.chunk(2)
    bell = torch.special.ndtri(drawn[:, 5:11].double().clamp(1e-6, 1 - 1e-6)).float()
    return _pixels(recolour(images, (means + bell * deviations).clamp(0.0, 1.0)))


def grey(images: Tensor, _: Tensor) -> Tensor:
    """Each image without colour."""
    return _pixels(_luma(images)).unsqueeze(3).repeat(1, 1, 1, 3)


def edges(images: Tensor, _: Tensor) -> Tensor:
    """Each image as a drawing: dark lines on white where its brightness changes (Sobel)."""
    light = F.pad(_luma(images).unsqueeze(1), (1, 1, 1, 1), mode="replicate").squeeze(1)
    rows = light[:, :-2] + 2 * light[:, 1:-1] + light[:, 2:]
    columns = light[:, :, :-2] + 2 * light[:, :, 1:-1] + light[:, :, 2:]
    slope = torch.hypot(rows[:, :, 2:] - rows[:, :, :-2], columns[:, 2:] - columns[:, :-2])
    black = INK * slope.mean(dim=(1, 2), keepdim=True).clamp_min(1.0)
    return _pixels(255.0 * (1 - slope / black)).unsqueeze(3).repeat(1, 1, 1, 3)


Kind = Callable[[Tensor, Tensor], Tensor]  # (images [n, h, w, 3], numbers [n, 11]) -> images of the same shape
KINDS: Mapping[str, Kind] = {"crop": crop, "mirror": mirror, "colour": colour, "grey": grey, "edges": edges}


def _varied(images: Tensor, drawn: Tensor) -> Tensor:
    """A random crop, mirrored or not."""
    cut = crop(images, drawn)
    return torch.where((drawn[:, 4] < 0.5).view(-1, 1, 1, 1), cut.flip(2), cut)


def _luma(images: Tensor) -> Tensor:
    return images.float() @ torch.tensor(LUMA)


def _pixels(values: Tensor) -> Tensor:
    return values.round().clamp(0, 255).to(torch.uint8)
