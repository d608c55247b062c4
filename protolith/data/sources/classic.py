"""The data sets' own files: MNIST's idx, USPS's LIBSVM and HDF5, SVHN's MATLAB files, SYN's class folders.

The libraries for these formats are imported where they are needed: together they take longer than a second.
"""

import bz2
import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protolith.data.sources import folder
from protolith.data.sources.found import Found, spellings, stamps
from protolith.data.sources.inventory import Array, Part, Row
from protolith.errors import UserError
from protolith.extras import need

DIGITS = tuple("0123456789")
Labels = npt.NDArray[np.int64]
Load = Callable[[], tuple[Array, Labels]]

# What to put where, for the sentence that says that a domain is missing.
EXPECTED = {
    "mnist": "mnist/train-images-idx3-ubyte.gz and its three companions",
    "usps": "usps/usps.bz2 and usps/usps.t.bz2",
    "svhn": "svhn/train_32x32.mat and svhn/test_32x32.mat",
    "syn": "syn/imgs_train/<class>/<image> and syn/imgs_valid/<class>/<image>",
}


def find(place: Path, domain: str) -> Found | None:
    """Find a domain in a folder as its authors publish it."""
    finders = {"mnist": _mnist, "usps": _usps, "svhn": _svhn, "syn": _syn}
    return finders[domain](place) if domain in finders and place.is_dir() else None


def read_idx(file: Path) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes, with or without gzip."""
    data = _guarded(file, lambda: gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes())
    dimensions = data[3] if len(data) > 3 and data[:3] == b"\x00\x00\x08" else 0
    start = 4 + 4 * dimensions
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], dtype=">u4")) if len(data) >= start else ()
    if not dimensions or len(data) - start != math.prod(shape):
        raise UserError(f"file '{file}' is not a complete idx file of bytes.")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_libsvm(file: Path) -> tuple[Array, Labels]:
    """Read USPS in LIBSVM's format: labels 1 to 10 for the digits 0 to 9, 256 values from -1 to 1."""

    def load() -> tuple[Any, Any]:
        with bz2.open(file) if file.suffix == ".bz2" else file.open("rb") as opened:
            rows = [np.array(line.replace(b":", b" ").split(), dtype=np.float64) for line in opened if line.strip()]
        values = np.zeros((len(rows), 256))
        for number, row in enumerate(rows):  # label, then index and value in turn; what is 0 may be left out
            if len(row) % 2 == 0 or min(row[1::2], default=1) < 1:
                raise ValueError("a line is a label, then column:value, and columns count from 1")
            values[number, row[1::2].astype(np.int64) - 1] = row[2::2]
        return values, np.array([row[0] for row in rows])

    values, labels = _guarded(file, load)
    pixels = np.rint(np.clip((values + 1) * 127.5, 0, 255)).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), labels.astype(np.int64) - 1


def read_h5(file: Path, part: str) -> tuple[Array, Labels]:
    """Read one part of USPS in HDF5: values from 0 to 1, labels 0 to 9."""
    need(f"file '{file}', which is HDF5,", "formats", "h5py")

    def load() -> tuple[Any, Any]:
        import h5py

        with h5py.File(file, "r") as opened:
            return np.asarray(opened[part]["data"]), np.asarray(opened[part]["target"])

    values, labels = _guarded(file, load)
    pixels = np.rint(np.clip(values * (255 if values.max(initial=0) <= 1 else 1), 0, 255)).astype(np.uint8)
    return pixels.reshape(-1, 16, 16), labels.astype(np.int64).reshape(-1)


def read_mat(file: Path) -> tuple[Array, Labels]:
    """Read SVHN's cropped digits: X [32, 32, 3, n] and y, where 10 stands for zero."""

    def load() -> tuple[Any, Any]:
        from scipy.io import loadmat

        content = loadmat(str(file), variable_names=["X", "y"])
        return content["X"], content["y"]

    pixels, labels = _guarded(file, load)
    images = np.ascontiguousarray(np.transpose(pixels, (3, 0, 1, 2))).astype(np.uint8, copy=False)
    return images, labels.reshape(-1).astype(np.int64) % 10


def _mnist(place: Path) -> Found | None:
    for inside in (place, place / "raw", place / "MNIST" / "raw"):
        files = [_idx_file(inside, part, kind) for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
        present = [file for file in files if file]
        if len(present) == 4:
            pairs = [(present[0], present[1]), (present[2], present[3])]
            loads = [lambda pair=pair: (read_idx(pair[0]), read_idx(pair[1]).astype(np.int64)) for pair in pairs]
            return _found("mnist", present, inside, loads[0], loads[1])
    return None


def _idx_file(inside: Path, part: str, kind: str) -> Path | None:
    names = (f"{part}-{kind}-ubyte", f"{part}-{kind.replace('-', '.')}-ubyte")
    paths = (inside / f"{name}{ending}" for name in names for ending in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


def _usps(place: Path) -> Found | None:
    ending = ".bz2" if (place / "usps.bz2").is_file() else ""
    train, test = place / f"usps{ending}", place / f"usps.t{ending}"
    if train.is_file() and test.is_file():
        return _found("usps", [train, test], place, lambda: read_libsvm(train), lambda: read_libsvm(test))
    file = place / "usps.h5"
    if file.is_file():
        return _found("usps", [file], place, lambda: read_h5(file, "train"), lambda: read_h5(file, "test"))
    return None


def _svhn(place: Path) -> Found | None:
    train, test = place / "train_32x32.mat", place / "test_32x32.mat"
    if train.is_file() and test.is_file():
        return _found("svhn", [train, test], place, lambda: read_mat(train), lambda: read_mat(test))
    return None


def _syn(place: Path) -> Found | None:
    for inside in (place, place / "synthetic_digits"):
        if (inside / "imgs_train").is_dir() and (inside / "imgs_valid").is_dir():
            return folder.find_parts("syn", inside / "imgs_train", inside / "imgs_valid")
    return None


def _found(domain: str, files: list[Path], place: Path, train: Load, test: Load) -> Found:
    def rows(classes: tuple[str, ...]) -> list[Row]:
        own = spellings(DIGITS, classes, f"domain '{domain}'")
        names = [own[digit] for digit in DIGITS]
        return [*_rows(train, names, domain, "train", place), *_rows(test, names, domain, "test", place)]

    return Found(domain, stamps(files), str(place), rows, True, DIGITS)


def _rows(load: Load, names: list[str], domain: str, part: Part, place: Path) -> Iterator[Row]:
    pixels, labels = load()
    if len(pixels) != len(labels) or (len(labels) and not 0 <= labels.min() <= labels.max() <= 9):
        counts = f"{len(pixels)} images and {len(labels)} labels"
        raise UserError(f"{domain} {part} in '{place}' has {counts}, or labels that are no digits.")
    for index, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        yield Row(domain, part, names[label], picture, f"image {index} in {place}")


def _guarded(file: Path, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:  # each of these libraries has its own errors, and all of them mean the same here
        raise UserError(f"file '{file}' cannot be read: it is damaged or has another format ({error}).") from error
