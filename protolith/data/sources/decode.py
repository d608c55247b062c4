"""Decoding: encoded images or arrays of any size to one uint8 tensor [n, size, size, 3]."""

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from protolith.data.sources.found import Progress
from protolith.errors import UserError

Array = npt.NDArray[np.uint8]

CHUNK = 500  # images per piece of work, and so the step of the progress
THREADS = max(1, min(4, os.cpu_count() or 1))  # Pillow decodes and resizes outside the interpreter lock


class Pictures(Protocol):
    """Images that can be opened one by one, each with a name for error messages."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Say which image this is."""
        ...

    def open(self, index: int) -> Image.Image:
        """Open one image; its pixels may be read later."""
        ...


@dataclass(frozen=True)
class FilePictures:
    """Image files."""

    files: Sequence[Path]

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """Return the path of the file."""
        return str(self.files[index])

    def open(self, index: int) -> Image.Image:
        """Open the file."""
        return Image.open(self.files[index])


@dataclass(frozen=True)
class EncodedPictures:
    """Encoded images in memory: a column of bytes, and names where the source has them."""

    column: Any  # a pyarrow binary array: indexable, items have as_py()
    names: Sequence[str | None]
    where: str

    def __len__(self) -> int:
        return len(self.column)

    def name(self, index: int) -> str:
        """Return the name that the source gives, or the row."""
        return f"{self.names[index] or f'row {index}'} in {self.where}"

    def open(self, index: int) -> Image.Image:
        """Open the bytes."""
        return Image.open(io.BytesIO(self.column[index].as_py() or b""))


@dataclass(frozen=True)
class ArrayPictures:
    """Images of one size as an array [n, height, width] or [n, height, width, 3]."""

    pixels: Array
    where: str

    def __len__(self) -> int:
        return len(self.pixels)

    def name(self, index: int) -> str:
        """Return the position in the file."""
        return f"image {index} in {self.where}"

    def open(self, index: int) -> Image.Image:
        """Wrap the pixels."""
        return Image.fromarray(self.pixels[index])


def decode(pictures: Pictures, size: int, what: str, progress: Progress) -> Tensor:
    """Decode all images to RGB at size × size, bilinear with antialiasing, the aspect squashed."""
    if isinstance(pictures, ArrayPictures) and pictures.pixels.shape[1:3] == (size, size):
        return _as_rgb(pictures.pixels)
    count = len(pictures)
    images = torch.empty((count, size, size, 3), dtype=torch.uint8)
    view = images.numpy()

    def work(start: int) -> int:
        stop = min(start + CHUNK, count)
        for index in range(start, stop):
            view[index] = _one(pictures, index, size)
        return stop

    with ThreadPoolExecutor(THREADS) as pool:
        for stop in pool.map(work, range(0, count, CHUNK)):
            if stop % (10 * CHUNK) == 0 or stop == count:
                progress(f"{what}: {stop:,} of {count:,} images")
    return images


def resized(images: Tensor, size: int) -> Tensor:
    """Resize decoded images the way that `decode` does."""
    if images.shape[1] == images.shape[2] == size:
        return images
    return decode(ArrayPictures(images.numpy(), "memory"), size, "resize", lambda _: None)


def _as_rgb(pixels: Array) -> Tensor:
    colour = pixels if pixels.ndim == 4 else np.repeat(pixels[..., None], 3, axis=3)
    return torch.from_numpy(np.ascontiguousarray(colour))


def _one(pictures: Pictures, index: int, size: int) -> Array:
    try:
        with pictures.open(index) as image:
            _check_area(image)
            return _pixels(ImageOps.exif_transpose(image), size)
    except Image.DecompressionBombError as error:
        raise UserError(f"image {pictures.name(index)} is too large to be decoded safely: {error}.") from error
    except (OSError, SyntaxError, ValueError, EOFError) as error:  # what Pillow raises for damaged files
        reason = str(error) if "identify" not in str(error) else "not an image that Pillow knows"
        raise UserError(f"image {pictures.name(index)} cannot be read ({reason}).") from error


def _check_area(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS  # Pillow itself only warns up to twice this limit
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(f"{image.width} × {image.height} pixels, {limit:,} allowed")


def _pixels(image: Image.Image, size: int) -> Array:
    # Grey images are resized in one channel and then repeated: the same pixels for a third of the work.
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    if image.size != (size, size):
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _eight_bits(image: Image.Image) -> Image.Image:
    # 16-bit grey (scanners, medicine): convert() would clip everything above 255 to white.
    values = np.asarray(image).astype(np.int64)
    return Image.fromarray(np.clip(values >> 8 if values.max(initial=0) > 255 else values, 0, 255).astype(np.uint8))
