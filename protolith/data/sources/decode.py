"""Decoding: encoded images or arrays of any size to one uint8 tensor [n, size, size, 3]."""

import contextlib
import functools
import importlib.util
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import (  # each makes its format known
    BmpImagePlugin,  # noqa: F401
    GifImagePlugin,  # noqa: F401
    Image,
    ImageOps,
    JpegImagePlugin,  # noqa: F401
    PngImagePlugin,  # noqa: F401
    PpmImagePlugin,  # noqa: F401
    TiffImagePlugin,  # noqa: F401
    WebPImagePlugin,  # noqa: F401
)
from torch import Tensor

from protolith.data.sources.found import Progress
from protolith.data.sources.inventory import Array, Picture, printable
from protolith.machine import cores

# What images are kept in (JPEG includes MPO). Pillow knows more, such as EPS, which it hands to another program.
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
SUFFIXES = frozenset(
    (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".pnm")
)
HEIC = frozenset((".heic", ".heif"))  # phones' photographs: read by pillow-heif, where that is installed
LITTER = ("thumbs.db", "desktop.ini")  # what Windows leaves in folders of pictures; nobody misses them
KINDS, ENDING = 8, 12  # endings in a note, and the letters of one
LEAST_SIDE = 2  # pixels; a single one shows nothing
CHUNK = 500  # images per piece of work, and so the step of the progress
Resize = Literal["squash", "crop", "pad"]
Interpolation = Literal["bilinear", "bicubic", "lanczos", "nearest"]
SAMPLINGS: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
THREADS = min(4, cores())  # Pillow decodes and resizes outside the interpreter lock


@dataclass(frozen=True)
class Fit:
    """How an image of any shape becomes a square: squashed, cropped, or padded with black, and by which filter.

    A crop is of the middle, and its side is this share of the image's shorter one. Where an image is squashed, the
    middle that is kept has this share of each of its sides.
    """

    resize: Resize = "squash"
    interpolation: Interpolation = "bilinear"
    share: float = 1.0

    def __str__(self) -> str:
        return f"{self.resize} {self.interpolation} {self.share:g}"

    def square(self, image: Image.Image, size: int) -> Image.Image:
        """The image at size × size."""
        to, by = (size, size), SAMPLINGS[self.interpolation]
        if self.resize == "crop":
            return ImageOps.fit(image, to, by, bleed=(1 - self.share) / 2)
        if self.resize == "pad":
            return ImageOps.pad(image, to, by)
        width, height = image.size
        edge = (1 - self.share) / 2
        return image.resize(to, by, (edge * width, edge * height, width - edge * width, height - edge * height))


PLAIN = Fit()


def suffixes() -> frozenset[str]:
    """The endings of files that are read as images here."""
    return SUFFIXES | HEIC if heic_is_read() else SUFFIXES


@functools.cache
def heic_is_read() -> bool:
    """Tell whether pillow-heif is installed, without loading it."""
    return importlib.util.find_spec("pillow_heif") is not None


@functools.cache
def _heic_formats() -> tuple[str, ...]:
    if not heic_is_read():
        return ()
    import pillow_heif  # loads libheif, which only HEIC files need

    pillow_heif.register_heif_opener(thumbnails=False)
    return ("HEIF",)


def unread(files: Iterable[Path]) -> Counter[str]:
    """Count the files that are not read as images by their endings; hidden ones and litter do not count."""
    read = suffixes()
    return Counter(
        printable(file.suffix.lower())[:ENDING] or "no ending"
        for file in files
        if file.suffix.lower() not in read and not file.name.startswith(".") and file.name.lower() not in LITTER
    )


def about_unread(found: Counter[str]) -> str:
    """Say in one line which files were left out because of their type; nothing where there are none."""
    if not found:
        return ""
    count = found.total()
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    kinds = ", ".join(f"{kind} {many:,}" for kind, many in ordered[:KINDS])
    kinds += f" and {len(found) - KINDS:,} more" if len(found) > KINDS else ""
    what = f"{count:,} files of types that are" if count > 1 else "1 file of a type that is"
    hint = "; .heic needs: pip install 'protolith[heic]'" if HEIC & found.keys() else ""
    return f"{what} not read: {kinds}{hint}"


@dataclass(frozen=True)
class Decoded:
    """Decoded images [n, size, size, 3], the sizes [n, 2] (width, height) that they had, and what was unreadable.

    The pixels of an unreadable image are zeros; `bad` says by position what is wrong with it.
    """

    images: Tensor
    sizes: Tensor
    bad: dict[int, str]


def decode(pictures: Sequence[Picture], size: int, what: str, progress: Progress, fit: Fit = PLAIN) -> Decoded:
    """Decode the images that can be read to RGB at size × size, and say what is wrong with the others."""
    count = len(pictures)
    images = torch.zeros((count, size, size, 3), dtype=torch.uint8)
    sizes = torch.zeros((count, 2), dtype=torch.int64)
    view, extents = images.numpy(), sizes.numpy()
    bad: dict[int, str] = {}

    def work(start: int) -> int:
        stop = min(start + CHUNK, count)
        for index in range(start, stop):
            try:
                view[index], extents[index] = _one(pictures[index], size, fit)
            except _BadImage as error:
                bad[index] = str(error)
        return stop

    with ThreadPoolExecutor(THREADS) as pool:
        for stop in pool.map(work, range(0, count, CHUNK)):
            if stop % (10 * CHUNK) == 0 or stop == count:
                progress(f"{what}: {stop:,} of {count:,} images")
    return Decoded(images, sizes, dict(sorted(bad.items())))


def extents(pictures: Sequence[Picture]) -> list[tuple[int, int]]:
    """Width and height of the images that can be opened, from their headers alone: no pixel is decoded."""
    found = []
    for picture in pictures:
        with contextlib.suppress(Exception), _open(picture) as image:  # what is wrong is said when it is decoded
            found.append(image.size)
    return found


class _BadImage(Exception):
    """What is wrong with an image, as the end of a sentence that begins with its name."""


def _open(picture: Picture) -> Image.Image:
    """Open an image; its pixels are read later."""
    if isinstance(picture, bytes):
        return Image.open(io.BytesIO(picture), formats=FORMATS)
    if not isinstance(picture, Path):
        return Image.fromarray(picture)
    if not picture.is_file() and picture.exists():  # a named pipe would be waited for
        raise _BadImage("is not a regular file")
    return Image.open(picture, formats=FORMATS + (_heic_formats() if picture.suffix.lower() in HEIC else ()))


def _one(picture: Picture, size: int, fit: Fit) -> tuple[Array, tuple[int, int]]:
    if isinstance(picture, np.ndarray) and picture.shape[:2] == (size, size):
        return picture.reshape(size, size, -1), (size, size)
    try:
        with _open(picture) as image:
            _check_area(image)  # from the header: nothing is decoded yet
            return _pixels(ImageOps.exif_transpose(image), size, fit), image.size
    except Image.DecompressionBombError as error:
        raise _BadImage(f"is too large to be decoded safely: {str(error).rstrip('.')}") from error
    except _BadImage:
        raise
    except Exception as error:  # a damaged file makes Pillow raise nearly anything
        raise _BadImage(f"cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    if "identify" in str(error):
        return "not an image that Pillow knows"
    return str(error) or type(error).__name__


def _check_area(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS  # Pillow itself only warns up to twice this limit
    if limit is not None and image.width * image.height > limit:
        raise Image.DecompressionBombError(f"{image.width} × {image.height} pixels, {limit:,} allowed")
    if min(image.size) < LEAST_SIDE:
        raise _BadImage(f"is too small to show anything: {image.width} × {image.height} pixels")


def _pixels(image: Image.Image, size: int, fit: Fit) -> Array:
    # Grey images are resized in one channel and then repeated: the same pixels for a third of the work.
    if image.mode.startswith("I"):
        image = _eight_bits(image)
    elif image.mode == "F":
        image = _from_floats(image)
    elif image.has_transparency_data:
        image = _on_white(image)
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    if image.size != (size, size):
        image = fit.square(image, size)
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _on_white(image: Image.Image) -> Image.Image:
    # What is transparent has a colour too, which nobody was meant to see.
    colour = image.convert("RGBA")
    if colour.getchannel("A").getextrema() == (255, 255):
        return image
    paper = Image.new("RGBA", colour.size, (255, 255, 255, 255))
    return Image.alpha_composite(paper, colour).convert("RGB")


def _from_floats(image: Image.Image) -> Image.Image:
    # Floating-point TIFF: from 0 to 1 where nothing is above 1, and from 0 to 255 otherwise.
    values = np.nan_to_num(np.asarray(image, dtype=np.float64))
    scale = 255.0 if values.max(initial=0.0) <= 1.0 else 1.0
    return Image.fromarray(np.clip(np.rint(values * scale), 0, 255).astype(np.uint8))


def _eight_bits(image: Image.Image) -> Image.Image:
    # 16-bit grey (scanners, medicine): convert() would clip everything above 255 to white.
    values = np.asarray(image).astype(np.int64)
    return Image.fromarray(np.clip(values >> 8 if values.max(initial=0) > 255 else values, 0, 255).astype(np.uint8))
