"""Near-identical images in two sets, found by a perceptual hash and then by their pixels."""

import torch
import torch.nn.functional as F
from torch import Tensor

BITS = 64
DISTANCE = 3  # bits that the hashes of near-identical images may differ in
SIDE = 16  # pixels are compared at this size, where what JPEG does to an image averages out
CONTRAST = 0.3  # their differences (root mean square) may be this part of the image's own contrast
NOISE = 2.0  # or so many grey levels, in plain images that have none
BLOCK = 2**24  # distances held at once (64 MB)


def dhash(images: Tensor) -> Tensor:
    """Hash images [n, h, w, 3] by whether grey rises from left to right between 9 × 8 cells: ±1 of shape [n, 64]."""
    parts = [_rises(part) for part in torch.split(images, 1024)]
    return torch.cat([torch.empty(0, BITS), *parts])


def near_identical(first: Tensor, second: Tensor) -> Tensor:
    """Pairs [p, 2] of places in two sets of images [n, h, w, 3] that look the same; vectorised, in blocks.

    A hash alone takes all plain images for the same one, so that pixels have the last word.
    """
    ours, theirs = dhash(first), dhash(second)
    rows = max(1, BLOCK // max(1, len(theirs)))
    found = [torch.empty(0, 2, dtype=torch.int64)]
    for start in range(0, len(ours), rows):
        agreement = ours[start : start + rows] @ theirs.T  # 64 − 2 × the bits that differ
        pairs = torch.nonzero(agreement >= BITS - 2 * DISTANCE - 0.5)
        pairs[:, 0] += start
        found += [_same_pixels(first, second, part) for part in torch.split(pairs, 4096) if len(part)]
    return torch.cat(found)


def _rises(images: Tensor) -> Tensor:
    cells = F.adaptive_avg_pool2d(_grey(images), (8, 9))[:, 0]
    return torch.where(cells[:, :, 1:] > cells[:, :, :-1], 1.0, -1.0).flatten(1)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114])
    return (images.float() @ weights)[:, None]


def _same_pixels(first: Tensor, second: Tensor, pairs: Tensor) -> Tensor:
    ours, theirs = (
        F.adaptive_avg_pool2d(images[pairs[:, side]].permute(0, 3, 1, 2).float(), SIDE).flatten(1)
        for side, images in enumerate((first, second))
    )
    difference = (ours - theirs).square().mean(dim=1).sqrt()
    contrast = torch.minimum(ours.std(dim=1, correction=0), theirs.std(dim=1, correction=0))
    return pairs[difference <= (CONTRAST * contrast).clamp_min(NOISE)]
