"""A folder for each site: `site/class/image`, or `site/train|val|test/class/image`."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from protolith.data.sources.folder import SUFFIXES, images, subfolders
from protolith.data.sources.found import listed
from protolith.data.sources.inventory import Inventory, Part, Row, inventory, part_of, printable
from protolith.errors import UserError


def read_tree(root: Path) -> Inventory:
    """List the images of a folder of sites."""
    notes: list[str] = []
    rows = [row for site in _folders(root, notes) for row in _site(site, notes)]
    if not rows:
        kinds = ", ".join(sorted(SUFFIXES))
        raise UserError(
            f"folder '{printable(str(root))}' holds no domain: it needs images ({kinds}) in domain/class/image."
        )
    return inventory(root.resolve().name, root, rows, notes)


def _site(folder: Path, notes: list[str]) -> Iterator[Row]:
    inner = {path.name: path for path in _folders(folder, notes)}
    loose = images(folder)
    if loose and not inner:
        raise UserError(
            f"domain '{printable(folder.name)}' in '{printable(str(folder))}' holds images but no class folders "
            "(domain/class/image)."
        )
    if loose:
        notes.append(f"{printable(folder.name)}: {len(loose)} image(s) outside the class folders are not used")
    in_parts = "train" in inner and all(part_of(name) for name in inner) and not images(inner["train"])
    if not in_parts:
        yield from _classes(folder.name, "", inner.values(), notes)
        return
    for name, path in inner.items():
        yield from _classes(folder.name, part_of(name) or "", _folders(path, notes), notes)


def _classes(site: str, part: Part, folders: Iterable[Path], notes: list[str]) -> Iterator[Row]:
    for folder in folders:
        files = images(folder)
        if not files:
            notes.append(f"{printable(site)}: class folder '{printable(folder.name)}' holds no image")
        if deeper := subfolders(folder):
            names = listed([printable(path.name) for path in deeper])
            notes.append(f"{printable(site)}: folders inside class '{printable(folder.name)}' are not read: {names}")
        for file in files:
            yield Row(site, part, folder.name, file)


def _folders(folder: Path, notes: list[str]) -> list[Path]:
    """The folders inside a folder, without links that lead back up."""
    here = os.path.realpath(folder)
    found = []
    for path in subfolders(folder):
        real = os.path.realpath(path)
        if path.is_symlink() and (here == real or here.startswith(real.rstrip(os.sep) + os.sep)):
            notes.append(f"link '{printable(str(path))}' leads back to a folder that holds it and is not followed")
        else:
            found.append(path)
    return found
