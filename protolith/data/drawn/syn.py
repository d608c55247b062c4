"""`syn*`, our stand-in for the SYN data set: digits of many faces, colours, sizes and turns on busy grounds.

The original (Roy et al., 2018) lays digits over photographs. This one has the same counts and classes but is
drawn from what is installed: over patches of scikit-learn's two photographs, colour ramps and coarse noise.
Its test part uses faces and photograph regions that its training part does not have. The star in its name
says in every table that it is not the original.
"""

import numpy as np

from protolith.data.domain import Domain, Split
from protolith.data.drawn import glyphs
from protolith.data.drawn.glyphs import Floats, Ints, Part, Pose, uniform

VERSION = 1  # raise it when any pixel changes: decoded copies of older versions are then made anew
NAME = "syn*"


def render(size: int, train: int = 10_000, test: int = 2_000) -> Domain:
    """Draw the domain with square images of `size` pixels, the same bytes every time."""
    return Domain(NAME, _split(size, "train", train), _split(size, "test", test))


def _split(size: int, part: Part, count: int) -> Split:
    rng = glyphs.random_generator("syn", VERSION, part, size, count)

    def draw(labels: Ints) -> Floats:
        n = len(labels)
        face = rng.integers(len(glyphs.FACES[part]), size=n)
        coverage = glyphs.warp(glyphs.cells(part)[face, labels], _pose(rng, n), size)
        below = _background(rng, n, size, part)
        ink = _ink(rng, below.mean(axis=(1, 2), dtype=np.float64).astype(np.float32))
        opacity = uniform(rng, n, 0.75, 1.0)[:, None, None]
        images = glyphs.over(below, ink, coverage * opacity)
        images = glyphs.blur(images, uniform(rng, n, 0.0, 0.9 * size / 32))
        return glyphs.noise(rng, images, uniform(rng, n, 0, 8))

    return glyphs.in_batches(glyphs.balanced(rng, count), draw)


def _pose(rng: np.random.Generator, n: int) -> Pose:
    return Pose(
        x=uniform(rng, n, -0.25, 0.25),
        y=uniform(rng, n, -0.25, 0.25),
        height=uniform(rng, n, 0.4, 0.9),
        stretch=uniform(rng, n, 0.75, 1.2),
        turn=uniform(rng, n, -0.5, 0.5),
        slant=uniform(rng, n, -0.25, 0.25),
        tilt_x=uniform(rng, n, -0.15, 0.15),
        tilt_y=uniform(rng, n, -0.15, 0.15),
    )


def _background(rng: np.random.Generator, n: int, size: int, part: Part) -> Floats:
    # Half photographs, a quarter colour ramps, a quarter coarse noise; all in random colours.
    kind = rng.integers(4, size=n)
    below = _recoloured(rng, glyphs.patches(rng, n, size, part))
    ramps, coarse = np.flatnonzero(kind == 2), np.flatnonzero(kind == 3)
    start = glyphs.colours(rng, uniform(rng, n, 20, 235), vivid=90)
    end = glyphs.colours(rng, uniform(rng, n, 20, 235), vivid=90)
    below[ramps] = glyphs.gradients(rng, start[ramps], end[ramps], size)
    below[coarse] = glyphs.over(start[coarse], end[coarse], _clouds(rng, len(coarse), size))
    return below


def _recoloured(rng: np.random.Generator, images: Floats) -> Floats:
    # Two photographs show few colours: swap the channels, and change brightness and contrast.
    channels = rng.permuted(np.tile(np.arange(3), (len(images), 1)), axis=1)
    swapped = np.take_along_axis(images, channels[:, None, None, :], axis=3)
    gain = uniform(rng, len(images), 0.5, 1.1)[:, None, None, None]
    lift = uniform(rng, len(images), -30, 60)[:, None, None, None]
    recoloured: Floats = np.clip(swapped * gain + lift, 0, 255)
    return recoloured


def _clouds(rng: np.random.Generator, n: int, size: int) -> Floats:
    # Smooth noise: a coarse random grid, interpolated.
    grid = rng.random((n, 6, 6), dtype=np.float32)
    at = np.linspace(0, 4.999, size, dtype=np.float32)
    whole = at.astype(np.int64)
    share = at - whole
    rows = grid[:, whole] * (1 - share)[None, :, None] + grid[:, whole + 1] * share[None, :, None]
    smooth: Floats = rows[:, :, whole] * (1 - share) + rows[:, :, whole + 1] * share
    return smooth


def _ink(rng: np.random.Generator, ground: Floats) -> Floats:
    # Any colour, as long as its brightness differs from that of the ground by 60 levels or more.
    n = len(ground)
    bright = 0.299 * ground[:, 0] + 0.587 * ground[:, 1] + 0.114 * ground[:, 2]
    darker, lighter = np.maximum(bright - 60, 0), np.maximum(195 - bright, 0)  # room on either side
    drawn = uniform(rng, n, 0, 1) * (darker + lighter)
    return glyphs.colours(rng, np.where(drawn < darker, drawn, drawn - darker + bright + 60), vivid=100)
