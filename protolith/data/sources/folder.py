"""Class folders: `domain/class/image`, or `domain/train|val|test/class/image`."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protolith.data.sources.decode import about_unread, suffixes, unread
from protolith.data.sources.found import Found, listed, spellings, stamps
from protolith.data.sources.inventory import (
    Inventory,
    Part,
    Row,
    file_row,
    inventory,
    part_of,
    printable,
    settled,
)
from protolith.errors import NothingRead, UserError


@dataclass
class Seen:
    """What was found on the way: sentences about what is left out, and every folder that was looked into."""

    root: Path
    notes: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def read_tree(root: Path) -> Inventory:
    """List the images of a folder of domains."""
    seen = Seen(root)
    rows = [row for folder in _folders(root, seen) for row in _domain(folder, folder.name, seen)]
    if rows and (beside := images(root)):
        seen.notes.append(f"{len(beside)} image(s) beside the sites' folders are not used")
    return _complete(root.resolve().name, root, rows, seen)


def read_domain(folder: Path, domain: str) -> Inventory:
    """List the images of a single domain."""
    seen = Seen(folder.parent)
    return _complete(domain, folder, list(_domain(folder, domain, seen)), seen)


def find(folder: Path, domain: str) -> Found | None:
    """Find a domain of a named task in its folder, or nothing when the folder holds no images in class folders."""
    seen = Seen(Path())
    return _found(domain, folder, list(_domain(folder, domain, seen)), seen)


def find_parts(domain: str, train: Path, test: Path) -> Found | None:
    """Find a domain whose training and test images are in two folders of class folders."""
    seen = Seen(Path())
    parts: tuple[tuple[Part, Path], ...] = (("train", train), ("test", test))
    rows = [row for part, folder in parts for row in _classes(domain, part, _folders(folder, seen), seen)]
    return _found(domain, train.parent, rows, seen)


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


def _found(domain: str, folder: Path, rows: Sequence[Row], seen: Seen) -> Found | None:
    if not rows:
        return None
    ordered = inventory(domain, folder, rows).rows
    train, test, unused = settled(ordered)
    names = tuple(dict.fromkeys(row.label for row in train))
    if strange := sorted({row.label for row in test}.difference(names)):
        raise UserError(f"domain '{domain}' in '{folder}' has test images of {listed(strange)} and none to train on.")

    def respelled(classes: tuple[str, ...]) -> list[Row]:
        own = spellings(names, classes, f"domain '{domain}' in '{folder}'")
        return [row._replace(label=own[row.label]) for row in train + test]

    notes = [*seen.notes, f"{domain}: the part 'val' is not used"] if unused else seen.notes
    files = (row.picture for row in train + test if isinstance(row.picture, Path))
    return Found(domain, stamps(files), str(folder), respelled, bool(test), names, tuple(notes))


def _complete(name: str, root: Path, rows: Sequence[Row], seen: Seen) -> Inventory:
    others = about_unread(unread(path for folder in seen.folders for path in folder.iterdir() if path.is_file()))
    where = printable(str(root))
    if not rows and others:
        raise NothingRead(f"folder '{where}' holds no image that can be read: {others}.")
    if not rows:
        kinds = ", ".join(sorted(suffixes()))
        raise UserError(f"folder '{where}' holds no site: it needs images ({kinds}) in site/class/image.")
    return inventory(name, root, rows, [*seen.notes, others] if others else seen.notes)


def _domain(folder: Path, domain: str, seen: Seen) -> Iterator[Row]:
    inner = {path.name: path for path in _folders(folder, seen)}
    loose = images(folder)
    if loose and not inner:
        raise UserError(
            f"site '{printable(domain)}' in '{printable(str(folder))}' holds images but no class folders "
            "(site/class/image)."
        )
    if loose:
        seen.notes.append(f"{printable(domain)}: {len(loose)} image(s) outside the class folders are not used")
    in_parts = "train" in inner and all(part_of(name) for name in inner) and not images(inner["train"])
    if not in_parts:
        yield from _classes(domain, "", inner.values(), seen)
        return
    for name, path in inner.items():
        yield from _classes(domain, part_of(name) or "", _folders(path, seen), seen)


def _classes(domain: str, part: Part, folders: Iterable[Path], seen: Seen) -> Iterator[Row]:
    for folder in folders:
        files = images(folder)
        if not files:
            seen.notes.append(f"{printable(domain)}: class folder '{printable(folder.name)}' holds no image")
        if deeper := subfolders(folder):
            names = listed([printable(path.name) for path in deeper])
            seen.notes.append(
                f"{printable(domain)}: folders inside class '{printable(folder.name)}' are not read: {names}"
            )
        for file in files:
            yield file_row(domain, part, folder.name, file, seen.root)


def _folders(folder: Path, seen: Seen) -> list[Path]:
    """The folders inside a folder, without links that lead back up."""
    here = os.path.realpath(folder)
    found = []
    for path in subfolders(folder):
        real = os.path.realpath(path)
        if path.is_symlink() and (here == real or here.startswith(real.rstrip(os.sep) + os.sep)):
            seen.notes.append(f"link '{printable(str(path))}' leads back to a folder that holds it and is not followed")
        else:
            found.append(path)
    seen.folders += found
    return found
