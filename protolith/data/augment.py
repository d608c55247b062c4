"""From stored images to network inputs, vectorised on the batch; the one place where images go to a device."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from protolith.data.domain import MEAN, STD


def crop(images: Tensor, rng: torch.Generator, padding: int) -> Tensor:
    """Shift every image [n, h, w, 3] by up to `padding` pixels, with zeros where nothing was."""
    n, height, width, _ = images.shape
    padded = torch.nn.functional.pad(images, (0, 0, padding, padding, padding, padding))
    tops = torch.randint(0, 2 * padding + 1, (n,), generator=rng).tolist()
    lefts = torch.randint(0, 2 * padding + 1, (n,), generator=rng).tolist()
    shifted = zip(padded, tops, lefts, strict=True)
    return torch.stack([image[top : top + height, left : left + width] for image, top, left in shifted])


def flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror every other image [n, h, w, 3], left to right, at random."""
    chosen = torch.rand(len(images), generator=rng) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), images.flip(2), images)


def erase(
    images: Tensor,
    rng: torch.Generator,
    probability: float = 0.5,
    area: tuple[float, float] = (0.02, 0.33),
    ratio: tuple[float, float] = (0.3, 3.3),
    colour: Sequence[float] = MEAN,
) -> Tensor:
    """Fill one rectangle of some images [n, h, w, 3] with a colour; `area` is its share, `ratio` its h / w."""
    n, height, width, _ = images.shape
    chosen, share, shape, down, right = torch.rand(5, n, 1, 1, generator=rng)
    share = area[0] + share * (area[1] - area[0])
    shape = torch.exp(math.log(ratio[0]) + shape * math.log(ratio[1] / ratio[0]))
    tall = (share * shape * height * width).sqrt().round().clamp(1, height)
    wide = (share / shape * height * width).sqrt().round().clamp(1, width)
    top, left = (down * (height - tall + 1)).floor(), (right * (width - wide + 1)).floor()
    rows, columns = torch.arange(height).view(1, -1, 1), torch.arange(width).view(1, 1, -1)
    inside = (rows >= top) & (rows < top + tall) & (columns >= left) & (columns < left + wide)
    filling = torch.tensor(colour).mul_(255).round_().to(images.dtype)
    return torch.where((inside & (chosen < probability)).unsqueeze(3), filling, images)


def one_view(encoded: Tensor, rng: torch.Generator) -> Tensor:
    """One view of each encoded image [n, views, …], drawn at random: [n, 1, …]."""
    n, views = encoded.shape[:2]
    if views == 1:
        return encoded
    return encoded[torch.arange(n), torch.randint(views, (n,), generator=rng)].unsqueeze(1)


def to_input(images: Tensor, device: torch.device, mean: Sequence[float] = MEAN, std: Sequence[float] = STD) -> Tensor:
    """Turn uint8 images [n, h, w, 3] into normalised floats [n, 3, h, w] in channels-last memory on the device."""
    middle = torch.tensor(mean, device=device).mul_(255)
    scale = torch.tensor(std, device=device).mul_(255).reciprocal_()
    floats = images.to(device, non_blocking=True).to(torch.float32)
    return floats.sub_(middle).mul_(scale).permute(0, 3, 1, 2)
