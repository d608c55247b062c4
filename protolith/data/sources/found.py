"""What a source says about a domain before it decodes anything, and the rules that all sources share."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from protolith.data.domain import Domain, Split
from protolith.errors import UserError

Progress = Callable[[str], None]
Read = Callable[[tuple[str, ...], int, Progress], Domain]

# In this order: a validation part stands in for a missing test part.
TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class Found:
    """A domain that a source has: what identifies its content, where it is, and how to decode it.

    `read` numbers the labels by the given classes; `given` tells whether the test part is the source's own.
    """

    domain: str
    fingerprint: str
    where: str
    read: Read
    given: bool
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


def silent(_: str) -> None:
    """Report progress to nobody."""


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


def numbering(names: Sequence[str], classes: Sequence[str], where: str) -> list[int]:
    """Return for each of a source's class names its index in `classes`; the two must be the same set."""
    same = str if set(names) == set(classes) else plain  # other spellings only where the exact ones do not fit
    index = {same(name): position for position, name in enumerate(classes)}
    here = {same(name): name for name in names}
    missing = [name for name in classes if same(name) not in here]
    strange = [name for name in names if same(name) not in index or here[same(name)] != name]
    if missing or strange:
        parts = [f"lacks {listed(missing)}"] * bool(missing) + [f"also has {listed(strange)}"] * bool(strange)
        raise UserError(f"{where} has other classes than its task: it {' and '.join(parts)}.")
    return [index[same(name)] for name in names]


def listed(names: Sequence[str], limit: int = 8) -> str:
    """Write names as a list for people, cut when it is long."""
    quoted = [f"'{name}'" for name in names[:limit]]
    return ", ".join(quoted) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def held_out(count: int) -> tuple[Tensor, Tensor]:
    """Split positions 0..count-1 by the papers' rule: position mod 10 in {8, 9} is test."""
    positions = torch.arange(count)
    test = positions % 10 >= 8
    return positions[~test], positions[test]


def hold_out(domain: str, split: Split) -> Domain:
    """Divide images in class and file order into a training and a test part by `held_out`."""
    train, test = held_out(len(split))
    if not len(test):
        raise UserError(
            f"domain '{domain}' has only {len(split)} images, too few to hold out a test part (at least 9), "
            f"so add images or give it a 'test' folder."
        )
    return Domain(
        domain,
        Split(split.images[train], split.labels[train]),
        Split(split.images[test], split.labels[test]),
    )


def held_out_by_class(labels: Tensor) -> Tensor:
    """Tell for each image, in class and file order, whether it is held out: about a fifth of every class.

    Of each ten images of a class the last two are; of what is left at its end, or of a class with fewer than
    ten, a fifth, rounded. A class of two or more always has a test image, and every class a training image.
    """
    test = torch.zeros(len(labels), dtype=torch.bool)
    for label in torch.bincount(labels).nonzero().flatten().tolist():
        members = torch.nonzero(labels == label).flatten()
        count = len(members)
        position = torch.arange(count)
        rest = count % 10
        first = count - max(round(rest / 5), int(1 < count < 10))  # where the end that is held out begins
        test[members] = ((position % 10 >= 8) & (position < count - rest)) | (position >= first)
    return test
