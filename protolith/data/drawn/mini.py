"""The embedded task `mini`: the ten digits in four looks, made from what the installed packages ship.

`pen` and `photo` hold real handwriting: none of scikit-learn's 1,797 scans is in two domains, or in training
and test. `print` and `street` are drawn from fonts; their test parts use faces that no training part has.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image

from protolith.data.domain import Domain, Split
from protolith.data.drawn import glyphs
from protolith.data.drawn.glyphs import Bytes, Floats, Ints, Part, Pose, uniform
from protolith.extras import need

VERSION = 1  # raise it when any pixel changes: decoded copies of older versions are then made anew

SIZE = 32
SCANS: dict[tuple[str, Part], int] = {  # scans per class; the rarest class has 174
    ("pen", "train"): 60,
    ("pen", "test"): 27,
    ("photo", "train"): 60,
    ("photo", "test"): 27,
}
DRAWN: dict[Part, int] = {"train": 800, "test": 300}  # images of a domain that is drawn from fonts


def _digits() -> Any:
    need(glyphs.DRAWING, "report")
    from sklearn.datasets import load_digits  # takes a second to import, and a decoded copy does without it

    return load_digits()


def draw(domain: str) -> Domain:
    """Make one of the four domains, the same bytes every time."""
    part = {"pen": _pen, "photo": _photo, "print": _print, "street": _street}[domain]
    return Domain(domain, part("train"), part("test"))


def scans() -> dict[tuple[str, Part], Ints]:
    """Say which of scikit-learn's scans each part of `pen` and `photo` uses, in the order of its images."""
    rng = _generator("scans")
    labels = _digits().target
    by_class = [rng.permutation(np.flatnonzero(labels == label)) for label in range(10)]
    used: dict[tuple[str, Part], Ints] = {}
    start = 0
    for key, count in SCANS.items():
        used[key] = rng.permutation(np.concatenate([order[start : start + count] for order in by_class]))
        start += count
    return used


def _generator(*parts: str) -> np.random.Generator:
    return glyphs.random_generator("mini", VERSION, *parts)


def _written(name: str, part: Part) -> tuple[Bytes, Ints]:
    # The scans of a part as images of light strokes on black, with a margin of two pixels.
    digits = _digits()
    chosen = scans()[name, part]
    inner = (SIZE - 4, SIZE - 4)
    pixels = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)
    smooth = [np.asarray(Image.fromarray(scan).resize(inner, Image.Resampling.BICUBIC)) for scan in pixels]
    return np.pad(np.array(smooth), ((0, 0), (2, 2), (2, 2))), digits.target[chosen].astype(np.int64)


def _pen(part: Part) -> Split:
    images, labels = _written("pen", part)
    return Split(torch.from_numpy(np.repeat(images[..., None], 3, axis=3)), torch.from_numpy(labels))


def _photo(part: Part) -> Split:
    images, labels = _written("photo", part)
    rng = _generator("photo", part)
    below = glyphs.patches(rng, len(labels), SIZE, part)
    strokes = np.clip(2.0 * images - 128, 0, 255)[..., None]  # firmer than scanned: half-tones would be lost
    mixed = np.rint(np.abs(below - strokes)).astype(np.uint8)
    return Split(torch.from_numpy(mixed), torch.from_numpy(labels))


def _print(part: Part) -> Split:
    rng = _generator("print", part)

    def draw(labels: Ints) -> Floats:
        n = len(labels)
        pose = _pose(rng, n, height=(0.45, 0.85), turn=0.12, slant=0.25, tilt=0.0, off=0.2)
        coverage = glyphs.warp(_faces(rng, part, labels), pose, SIZE)
        paper = glyphs.colours(rng, uniform(rng, n, 190, 250), vivid=30)
        ink = glyphs.colours(rng, uniform(rng, n, 10, 120), vivid=110)
        reversed_out = (rng.random(n) < 0.25)[:, None]  # paper-coloured digits on a printed ground
        below, above = np.where(reversed_out, ink, paper), np.where(reversed_out, paper, ink)
        return glyphs.noise(rng, glyphs.over(below, above, coverage), uniform(rng, n, 0, 4))

    return glyphs.in_batches(glyphs.balanced(rng, DRAWN[part]), draw)


def _street(part: Part) -> Split:
    rng = _generator("street", part)

    def draw(labels: Ints) -> Floats:
        n = len(labels)
        pose = _pose(rng, n, height=(0.6, 0.95), turn=0.12, slant=0.15, tilt=0.25, off=0.1)
        coverage = _number(rng, part, labels, pose)
        wall = uniform(rng, n, 60, 190)
        contrast = uniform(rng, n, 35, 100) * np.where(rng.random(n) < wall / 250, -1, 1).astype(np.float32)
        tint = glyphs.colours(rng, wall, vivid=28)
        shade = np.clip(tint + uniform(rng, n, -40, 40)[:, None], 0, 255)
        below = glyphs.gradients(rng, tint, shade, SIZE)
        ink = glyphs.colours(rng, np.clip(wall + contrast, 0, 255), vivid=28)
        images = glyphs.blur(glyphs.over(below, ink, coverage), uniform(rng, n, 0.4, 1.3))
        return glyphs.noise(rng, images, uniform(rng, n, 2, 10))

    return glyphs.in_batches(glyphs.balanced(rng, DRAWN[part]), draw)


def _number(rng: np.random.Generator, part: Part, labels: Ints, pose: Pose) -> Floats:
    # A digit of a house number: others of the same face stand beside it, cut off by the image's edge.
    n = len(labels)
    solid = [index for index, face in enumerate(glyphs.FACES[part]) if face.zero != glyphs.DOUBLE]
    cells = glyphs.cells(part)[solid]  # nobody paints outlined digits on a house
    faces = rng.integers(len(solid), size=n)
    coverage = glyphs.warp(cells[faces, labels], pose, SIZE)
    for side in (-1, 1):
        step = side * uniform(rng, n, 0.66, 0.85)
        beside = glyphs.warp(cells[faces, rng.integers(10, size=n)], pose, SIZE, shift=step)
        present = (rng.random(n) < 0.75).astype(np.float32)[:, None, None]
        coverage = np.maximum(coverage, beside * present)
    return coverage


def _faces(rng: np.random.Generator, part: Part, labels: Ints) -> Bytes:
    return glyphs.cells(part)[rng.integers(len(glyphs.FACES[part]), size=len(labels)), labels]


def _pose(
    rng: np.random.Generator,
    n: int,
    height: tuple[float, float],
    turn: float,
    slant: float,
    tilt: float,
    off: float,
) -> Pose:
    return Pose(
        x=uniform(rng, n, -off, off),
        y=uniform(rng, n, -off, off),
        height=uniform(rng, n, *height),
        stretch=uniform(rng, n, 0.8, 1.15),
        turn=uniform(rng, n, -turn, turn),
        slant=uniform(rng, n, -slant, slant),
        tilt_x=uniform(rng, n, -tilt, tilt),
        tilt_y=uniform(rng, n, -tilt, tilt),
    )
