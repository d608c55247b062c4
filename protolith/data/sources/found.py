"""What a source says about a domain before anything of it is read, and what all sources share."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from protolith.data.domain import Domain, Split
from protolith.data.sources.inventory import Part, Row
from protolith.errors import UserError

Progress = Callable[[str], None]
List = Callable[[tuple[str, ...]], Sequence[Row]]


@dataclass(frozen=True)
class Found:
    """A domain that a source has: what identifies its content, where it is, and how to list its images.

    `rows` labels them by the given classes; `given` tells whether the test part is the source's own.
    """

    domain: str
    fingerprint: str
    where: str
    rows: List
    given: bool
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def silent(_: str) -> None:
    """Report progress to nobody."""


def decoded_rows(domain: Domain, classes: Sequence[str]) -> list[Row]:
    """List the images of a domain that is decoded already."""
    parts: tuple[tuple[Part, Split], ...] = (("train", domain.train), ("test", domain.test))
    return [
        Row(domain.name, part, classes[label], picture, f"image {index} of {domain.name}")
        for part, split in parts
        for index, (picture, label) in enumerate(zip(split.images.numpy(), split.labels.tolist(), strict=True))
    ]


def stamps(files: Iterable[Path]) -> str:
    """Condense the places, sizes and times of change of files into a fingerprint, without reading them."""
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        digest.update(os.fsencode(file.absolute()) + f"\x1f{stat.st_size}\x1f{stat.st_mtime_ns}\n".encode())
    return f"files:{digest.hexdigest()}"


def plain(name: str) -> str:
    """Reduce a name to what matters when comparing: `Back-Pack`, `back_pack` and `backpack` are one."""
    return re.sub(r"[\W_]+", "", name).casefold()


def spellings(names: Sequence[str], classes: Sequence[str], where: str) -> dict[str, str]:
    """Say how the task spells each of a source's class names; the two must be the same set."""
    same = str if set(names) == set(classes) else plain  # other spellings only where the exact ones do not fit
    known = {same(name): name for name in classes}
    here = {same(name): name for name in names}
    missing = [name for name in classes if same(name) not in here]
    strange = [name for name in names if same(name) not in known or here[same(name)] != name]
    if missing or strange:
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"also has {listed(strange)}"] * bool(strange)
        raise UserError(f"{where} has other classes than its task: it {' and '.join(parts)}.")
    return {name: known[same(name)] for name in names}


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Write names as a list for people, cut when it is long."""
    quoted = [f"'{name}'" for name in names[:limit]]
    return ", ".join(quoted) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")
