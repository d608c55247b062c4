"""Pieces from which digit images are drawn: printed digits, poses, photographs, colours, blur and noise.

Everything works on whole batches and takes its random numbers from a generator that the caller seeds.
Sines and exponentials are taken in double precision and only then rounded, because their last bit in single
precision depends on the processor, and the images should not.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from protolith.data.domain import Split
from protolith.extras import need
from protolith.seeds import derive

Floats: TypeAlias = NDArray[np.float32]
Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]
Part: TypeAlias = Literal["train", "test"]

DRAWING = "drawing mini and syn*, from fonts and photographs that other packages ship,"
CELL = 64  # side of the square in which a printed digit is kept
TALL = 48  # height of the digit inside its cell; the rest is an empty margin
BATCH = 500  # images drawn at a time, so that intermediate arrays stay small
ASCII, DOUBLE, SANS, SANS_BOLD, MONO = 0x30, 0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6

PHOTOGRAPHS = ("china.jpg", "flower.jpg")
# Bands of columns of the 640-pixel-wide photographs, such that each part sees a bit of everything in them.
COLUMNS: dict[Part, tuple[slice, ...]] = {
    "train": (slice(0, 160), slice(240, 400), slice(480, 640)),
    "test": (slice(160, 240), slice(400, 480)),
}
WIDEST = 80  # pixels that fit into every band
REDUCTIONS = (1, 2)  # factors by which photographs are shrunk, for coarse and fine texture


@dataclass(frozen=True)
class Face:
    """One design of the ten digits: a font file of matplotlib (none: Pillow's own) and where its 0 is."""

    file: str | None
    zero: int = ASCII

    def font(self, size: int) -> ImageFont.FreeTypeFont:
        """Load the font at a size in pixels, from inside matplotlib or Pillow only."""
        if self.file is None:
            font = ImageFont.load_default(size)
            if not isinstance(font, ImageFont.FreeTypeFont):
                raise RuntimeError("Pillow was built without FreeType, which draws mini and syn*")
            return font
        return ImageFont.truetype(font_folder() / self.file, size, layout_engine=ImageFont.Layout.BASIC)


_SANS = ("Sans", "Sans-Bold", "Sans-BoldOblique", "Sans-Oblique")
_MONO = ("SansMono-Bold", "SansMono-BoldOblique", "SansMono-Oblique")
_SERIF = ("Serif", "Serif-Bold", "Serif-Italic")
# cmmi10's ASCII digits are old-style figures; the double-struck ones are outlines.
TRAIN_FACES = (
    *(Face(f"DejaVu{style}.ttf") for style in _SANS + _MONO + _SERIF),
    *(Face(f"STIXGeneral{style}.ttf") for style in ("", "Bol", "BolIta")),
    *(Face(f"cm{style}10.ttf") for style in ("mi", "r", "ti", "tt")),
    Face("STIXGeneral.ttf", SANS),
    Face("STIXGeneral.ttf", DOUBLE),
    Face("STIXGeneral.ttf", MONO),
    Face("DejaVuSans.ttf", DOUBLE),
    Face("DejaVuSans-Bold.ttf", DOUBLE),
    Face("DejaVuSerif.ttf", DOUBLE),
    Face(None),
)
TEST_FACES = (
    *(Face(f"DejaVu{style}.ttf") for style in ("SansMono", "Serif-BoldItalic")),
    *(Face(f"cm{style}10.ttf") for style in ("b", "ss")),
    Face("STIXGeneralItalic.ttf"),
    Face("STIXGeneral.ttf", SANS_BOLD),
)
FACES: dict[Part, tuple[Face, ...]] = {"train": TRAIN_FACES, "test": TEST_FACES}


@dataclass(frozen=True)
class Pose:
    """Where and how each digit of a batch stands: one number per digit in every field.

    `x` and `y` are the centre, with the image reaching from -1 to 1; `height` is the digit's share of the
    image's height; `stretch` widens it; `turn` is in radians; `slant` shears; the tilts give perspective.
    """

    x: Floats
    y: Floats
    height: Floats
    stretch: Floats
    turn: Floats
    slant: Floats
    tilt_x: Floats
    tilt_y: Floats


def random_generator(*parts: int | str) -> np.random.Generator:
    """Return a numpy generator whose numbers depend on the parts alone."""
    return np.random.default_rng(derive(*parts))


def font_folder() -> Path:
    """Find the folder of matplotlib's own fonts without importing matplotlib."""
    need(DRAWING, "report")
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"


@cache
def cells(part: Part) -> Bytes:
    """Draw the ten digits of every face of the part, centred and equally tall: [faces, 10, CELL, CELL]."""
    drawn = [[_cell(face, digit) for digit in range(10)] for face in FACES[part]]
    return np.array(drawn, dtype=np.uint8)


def _cell(face: Face, digit: int) -> Bytes:
    character = chr(face.zero + digit)
    _, top, _, bottom = face.font(200).getbbox(character)
    font = face.font(round(200 * TALL / (bottom - top)))
    left, top, right, bottom = font.getbbox(character)
    image = Image.new("L", (CELL, CELL))
    corner = ((CELL - left - right) / 2, (CELL - top - bottom) / 2)
    ImageDraw.Draw(image).text(corner, character, fill=255, font=font)
    return np.asarray(image)


def balanced(rng: np.random.Generator, count: int) -> Ints:
    """Draw labels in random order, each of the ten classes equally often (give or take one)."""
    return rng.permutation(np.arange(count) % 10)


def uniform(rng: np.random.Generator, count: int, low: float, high: float) -> Floats:
    """Draw one number per image, evenly between low and high."""
    return rng.uniform(low, high, count).astype(np.float32)


def warp(cell: Bytes, pose: Pose, size: int, shift: Floats | float = 0.0) -> Floats:
    """Draw each digit in its pose: ink coverage from 0 to 1, [n, size, size].

    `shift` moves digits along their own baseline, in digit heights, so that neighbours share one perspective.
    """
    fine = ((np.arange(2 * size) + 0.5) / size - 1.0).astype(np.float32)  # two samples a pixel each way
    x = fine[None, None, :] - _spread(pose.x)
    y = fine[None, :, None] - _spread(pose.y)
    depth = 1 + _spread(pose.tilt_x) * x + _spread(pose.tilt_y) * y
    cosine, sine = _direction(pose.turn)
    along = (cosine * x + sine * y) / depth
    down = (cosine * y - sine * x) / depth
    height = _spread(pose.height)
    column = (along + _spread(pose.slant) * down) / (height * _spread(pose.stretch)) - 2.0 * _spread(shift)
    scale, middle = np.float32(TALL / 2), np.float32((CELL - 1) / 2)
    covered = _sample(cell, column * scale + middle, down / height * scale + middle)
    upper, lower = covered[:, ::2], covered[:, 1::2]
    total: Floats = upper[:, :, ::2] + upper[:, :, 1::2] + lower[:, :, ::2] + lower[:, :, 1::2]
    return total * np.float32(0.25)


def _spread(values: Floats | float) -> Floats:
    return np.asarray(values, dtype=np.float32).reshape(-1, 1, 1)


def _direction(angle: Floats) -> tuple[Floats, Floats]:
    wide = angle.astype(np.float64)
    return _spread(np.cos(wide).astype(np.float32)), _spread(np.sin(wide).astype(np.float32))


def _sample(cell: Bytes, column: Floats, row: Floats) -> Floats:
    # Bilinear; the cells' empty margin makes everything outside them empty too.
    column, row = np.clip(column, 0, CELL - 1.001), np.clip(row, 0, CELL - 1.001)
    left, top = column.astype(np.int32), row.astype(np.int32)
    column -= left
    row -= top
    base = (np.arange(len(cell), dtype=np.int32)[:, None, None] * CELL + top) * CELL + left
    flat = cell.reshape(-1).astype(np.float32)
    upper = flat[base] * (1 - column) + flat[base + 1] * column
    base += CELL
    lower = flat[base] * (1 - column) + flat[base + 1] * column
    sampled: Floats = upper * (1 - row) + lower * row
    return sampled / np.float32(255)


@cache
def regions(part: Part, reduction: int) -> tuple[Bytes, ...]:
    """Return the bands of the photographs that belong to the part, shrunk: each [height, width, 3]."""
    need(DRAWING, "report")
    from sklearn.datasets import load_sample_image  # takes a second to import, and a decoded copy does without it

    photographs = [np.asarray(load_sample_image(name), dtype=np.uint8) for name in PHOTOGRAPHS]
    bands = [np.ascontiguousarray(pixels[:, band]) for pixels in photographs for band in COLUMNS[part]]
    return tuple(np.asarray(Image.fromarray(band).reduce(reduction)) for band in bands)


def patches(rng: np.random.Generator, count: int, size: int, part: Part) -> Floats:
    """Cut squares out of the part's regions of the photographs: [count, size, size, 3]."""
    if size > WIDEST:
        enlarged = patches(rng, count, (size + 1) // 2, part).repeat(2, axis=1).repeat(2, axis=2)
        return enlarged[:, :size, :size]
    sources = [band for reduction in REDUCTIONS for band in regions(part, reduction) if band.shape[1] >= size]
    cut = np.empty((count, size, size, 3), dtype=np.float32)
    source = rng.integers(len(sources), size=count)
    for index, pixels in enumerate(sources):
        chosen = np.flatnonzero(source == index)
        windows = np.lib.stride_tricks.sliding_window_view(pixels, (size, size), axis=(0, 1))
        rows = rng.integers(windows.shape[0], size=len(chosen))
        columns = rng.integers(windows.shape[1], size=len(chosen))
        cut[chosen] = windows[rows, columns].transpose(0, 2, 3, 1)
    mirrored = rng.random(count) < 0.5
    cut[mirrored] = cut[mirrored, :, ::-1]
    return cut


def gradients(rng: np.random.Generator, start: Floats, end: Floats, size: int) -> Floats:
    """Shade each image from one colour to another in a random direction: [n, size, size, 3]."""
    cosine, sine = _direction(uniform(rng, len(start), 0, 2 * np.pi))
    line = (np.arange(size, dtype=np.float32) + 0.5) / size - 0.5
    ramp = cosine * line[None, None, :] + sine * line[None, :, None]
    return over(start, end, np.clip(ramp + 0.5, 0, 1))


def over(below: Floats, above: Floats, coverage: Floats) -> Floats:
    """Lay one batch of images or colours over another, where it covers."""
    below, above = _plain(below), _plain(above)
    blended: Floats = below + (above - below) * coverage[..., None]
    return blended


def _plain(colours: Floats) -> Floats:
    return colours[:, None, None, :] if colours.ndim == 2 else colours


def colours(rng: np.random.Generator, grey: Floats, vivid: float) -> Floats:
    """Draw colours of the given brightness that stray from grey by up to `vivid` in each channel: [n, 3]."""
    stray = rng.uniform(-vivid, vivid, (len(grey), 3)).astype(np.float32)
    stray -= (0.299 * stray[:, 0] + 0.587 * stray[:, 1] + 0.114 * stray[:, 2])[:, None]
    drawn: Floats = np.clip(grey[:, None] + stray, 0, 255)
    return drawn


def blur(images: Floats, sigma: Floats) -> Floats:
    """Blur each image of [n, size, size, 3] with its own Gaussian, its width in pixels."""
    reach = int(np.ceil(3 * sigma.max()))
    steps = np.arange(-reach, reach + 1, dtype=np.float64)
    bell = np.exp(-0.5 * (steps[None] / np.maximum(sigma[:, None], 0.1)) ** 2)
    weights = (bell / bell.sum(axis=1, keepdims=True)).astype(np.float32)
    for axis in (1, 2):
        pad = [(reach, reach) if each == axis else (0, 0) for each in range(4)]
        padded = np.pad(images, pad, mode="edge")
        length = images.shape[axis]
        blurred = np.zeros_like(images)
        for step in range(2 * reach + 1):
            taken = padded[:, step : step + length] if axis == 1 else padded[:, :, step : step + length]
            blurred += taken * weights[:, step, None, None, None]
        images = blurred
    return images


def noise(rng: np.random.Generator, images: Floats, sigma: Floats) -> Floats:
    """Add pixel noise, of each image's own strength."""
    grain = rng.standard_normal(images.shape, dtype=np.float32)
    noisy: Floats = images + grain * sigma[:, None, None, None]
    return noisy


def in_batches(labels: Ints, draw: Callable[[Ints], Floats]) -> Split:
    """Draw the images of the labels a batch at a time and store them as bytes."""
    batches = [draw(labels[start : start + BATCH]) for start in range(0, len(labels), BATCH)]
    pixels = np.concatenate([np.clip(np.rint(batch), 0, 255).astype(np.uint8) for batch in batches])
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))
