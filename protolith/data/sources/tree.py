"""A folder for each site: `site/class/image`, or `site/train|val|test/class/image`."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from protolith.data.sources.decode import about_unread, suffixes, unread
from protolith.data.sources.folder import images, subfolders
from protolith.data.sources.found import listed
from protolith.data.sources.inventory import Inventory, Part, Row, inventory, part_of, printable
from protolith.errors import NothingRead, UserError


@dataclass
class _Seen:
    """What was found on the way: sentences about what is left out, and every folder that was looked into."""

    notes: list[str] = field(default_factory=list)
    folders: list[Path] = field(default_factory=list)


def read_tree(root: Path) -> Inventory:
    """List the images of a folder of sites."""
    seen = _Seen()
    rows = [row for site in _folders(root, seen) for row in _site(site, seen)]
    others = about_unread(unread(path for folder in seen.folders for path in folder.iterdir() if path.is_file()))
    if not rows:
        raise _nothing(root, others)
    if beside := images(root):
        seen.notes.append(f"{len(beside)} image(s) beside the sites' folders are not used")
    return inventory(root.resolve().name, root, rows, [*seen.notes, others] if others else seen.notes)


def _nothing(root: Path, others: str) -> UserError:
    where = printable(str(root))
    if others:
        return NothingRead(f"folder '{where}' holds no image that can be read: {others}.")
    kinds = ", ".join(sorted(suffixes()))
    return UserError(f"folder '{where}' holds no domain: it needs images ({kinds}) in domain/class/image.")


def _site(folder: Path, seen: _Seen) -> Iterator[Row]:
    inner = {path.name: path for path in _folders(folder, seen)}
    loose = images(folder)
    if loose and not inner:
        raise UserError(
            f"domain '{printable(folder.name)}' in '{printable(str(folder))}' holds images but no class folders "
            "(domain/class/image)."
        )
    if loose:
        seen.notes.append(f"{printable(folder.name)}: {len(loose)} image(s) outside the class folders are not used")
    in_parts = "train" in inner and all(part_of(name) for name in inner) and not images(inner["train"])
    if not in_parts:
        yield from _classes(folder.name, "", inner.values(), seen)
        return
    for name, path in inner.items():
        yield from _classes(folder.name, part_of(name) or "", _folders(path, seen), seen)


def _classes(site: str, part: Part, folders: Iterable[Path], seen: _Seen) -> Iterator[Row]:
    for folder in folders:
        files = images(folder)
        if not files:
            seen.notes.append(f"{printable(site)}: class folder '{printable(folder.name)}' holds no image")
        if deeper := subfolders(folder):
            names = listed([printable(path.name) for path in deeper])
            seen.notes.append(
                f"{printable(site)}: folders inside class '{printable(folder.name)}' are not read: {names}"
            )
        for file in files:
            yield Row(site, part, folder.name, file)


def _folders(folder: Path, seen: _Seen) -> list[Path]:
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
