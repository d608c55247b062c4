"""Class folders: `domain/class/image`, or `domain/train/class/image` with `domain/test/class/image`."""

from dataclasses import dataclass
from pathlib import Path

import torch

from protolith.data.domain import Domain, Split
from protolith.data.sources.decode import FilePictures, decode, suffixes
from protolith.data.sources.found import TEST_NAMES, Found, Progress, hold_out, listed, numbering, stamps
from protolith.errors import UserError

SPLIT_NAMES = {"train", *TEST_NAMES}


@dataclass(frozen=True)
class ClassFolders:
    """The image files of one part of a domain, by class, in alphabetical order."""

    folder: Path
    files: dict[str, tuple[Path, ...]]

    @property
    def all(self) -> tuple[Path, ...]:
        """All files, class by class."""
        return tuple(file for files in self.files.values() for file in files)

    def read(self, classes: tuple[str, ...], size: int, what: str, progress: Progress) -> Split:
        """Decode the images, labelled by the position of their class in `classes`."""
        index = {name: position for position, name in enumerate(classes)}
        labels = [index[name] for name, files in self.files.items() for _ in files]
        return Split(decode(FilePictures(self.all), size, what, progress), torch.tensor(labels, dtype=torch.int64))


def find(folder: Path, domain: str) -> Found | None:
    """Find one domain in a folder, or nothing when the folder holds no images in class folders."""
    inner = {path.name: path for path in subfolders(folder)}
    if not inner:
        if folder.is_dir() and images(folder):
            raise UserError(f"domain '{domain}' in '{folder}' holds images but no class folders (domain/class/image).")
        return None
    if "train" not in inner or not inner.keys() <= SPLIT_NAMES or images(inner["train"]):
        return _single(folder, domain)
    test = next((inner[name] for name in TEST_NAMES if name in inner), None)
    unused = [name for name in inner if test is not None and name not in ("train", test.name)]
    notes = (f"{domain}: the part {listed(unused)} is not used",) if unused else ()
    return find_parts(domain, inner["train"], test, notes) if test else _single(inner["train"], domain)


def find_parts(domain: str, train: Path, test: Path, notes: tuple[str, ...] = ()) -> Found | None:
    """Find a domain whose training and test images are in two folders of class folders."""
    first, second = class_folders(train), class_folders(test)
    if first is None or second is None:
        raise UserError(f"domain '{domain}' has no class folders with images in '{train if first is None else test}'.")
    names = tuple(first.files)
    if strange := [name for name in second.files if name not in first.files]:
        raise UserError(f"domain '{domain}' has classes in '{test}' that '{train}' lacks: {listed(strange)}.")

    def read(classes: tuple[str, ...], size: int, progress: Progress) -> Domain:
        own = _renamed(names, classes, f"domain '{domain}' in '{train.parent}'")
        parts = ((first, "train"), (second, "test"))
        return Domain(domain, *(part.read(own, size, f"{domain} {what}", progress) for part, what in parts))

    return Found(domain, stamps(first.all + second.all), str(train.parent), read, True, names, notes)


def class_folders(folder: Path) -> ClassFolders | None:
    """List the images of a folder of class folders; nothing when no class folder is there."""
    files = {path.name: images(path) for path in subfolders(folder)}
    if not any(files.values()):
        return None
    if empty := [name for name, inside in files.items() if not inside]:
        raise _empty(folder / empty[0])
    return ClassFolders(folder, files)


def subfolders(folder: Path) -> list[Path]:
    """List the folders inside a folder, alphabetically, without hidden ones."""
    if not folder.is_dir():
        return []
    inside = (path for path in folder.iterdir() if not path.name.startswith((".", "__")) and path.is_dir())
    return sorted(inside, key=lambda path: path.name)


def images(folder: Path) -> tuple[Path, ...]:
    """List the image files of a folder, alphabetically."""
    read = suffixes()
    inside = (path for path in folder.iterdir() if path.suffix.lower() in read and not path.name.startswith("."))
    return tuple(sorted(inside, key=lambda path: path.name))


def _empty(folder: Path) -> UserError:
    return UserError(f"class folder '{folder}' holds no image ({', '.join(sorted(suffixes()))}).")


def _single(folder: Path, domain: str) -> Found | None:
    listing = class_folders(folder)
    if listing is None:
        return None
    names = tuple(listing.files)

    def read(classes: tuple[str, ...], size: int, progress: Progress) -> Domain:
        own = _renamed(names, classes, f"domain '{domain}' in '{folder}'")
        return hold_out(domain, listing.read(own, size, domain, progress))

    return Found(domain, stamps(listing.all), str(folder), read, False, names)


def _renamed(names: tuple[str, ...], classes: tuple[str, ...], where: str) -> tuple[str, ...]:
    # The folder's own spelling of each class, in the order of the task's classes.
    own = dict(zip(numbering(names, classes, where), names, strict=True))
    return tuple(own[position] for position in range(len(classes)))
