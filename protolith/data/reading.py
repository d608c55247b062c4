"""From listed images to a domain: decode them, and hold a test part out by the rule that the task names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protolith.data.domain import Domain, Split
from protolith.data.sources.decode import PLAIN, Fit, decode
from protolith.data.sources.found import Found, Progress
from protolith.data.sources.inventory import Row, settled
from protolith.data.spec import Rule
from protolith.errors import UserError


@dataclass(frozen=True)
class Bad:
    """An image that cannot be read."""

    file: str
    reason: str


@dataclass(frozen=True)
class Read:
    """A domain's images, the names of them in the same order, and the sizes [n, 2] of what was readable."""

    domain: Domain
    train_files: tuple[str, ...]
    test_files: tuple[str, ...]
    sizes: Tensor
    given: bool  # whether the test part is its own
    unused: bool  # whether there is a validation part beside it
    bad: tuple[Bad, ...]


def read_rows(
    name: str,
    rows: Sequence[Row],
    classes: Sequence[str],
    size: int,
    rule: Rule,
    progress: Progress,
    fit: Fit = PLAIN,
) -> Read:
    """Decode what can be decoded of a domain; where no row is of a test part, one is held out by the rule."""
    train, test, unused = settled(rows)
    used = train + test
    found = decode([row.picture for row in used], size, name, progress, fit)
    bad = tuple(Bad(used[place].name, reason) for place, reason in found.bad.items())
    good = torch.tensor([place for place in range(len(used)) if place not in found.bad], dtype=torch.int64)
    index = {label: position for position, label in enumerate(classes)}
    labels = torch.tensor([index[row.label] for row in used], dtype=torch.int64)
    is_test = good >= len(train) if test else HOLD_OUT[rule](labels[good])
    parts = good[~is_test], good[is_test]
    domain = Domain(name, *(Split(_taken(found.images, part), labels[part]) for part in parts))
    names = [tuple(used[place].name for place in part.tolist()) for part in parts]
    return Read(domain, names[0], names[1], found.sizes[good], bool(test), bool(unused), bad)


def read_found(
    found: Found, classes: tuple[str, ...], size: int, rule: Rule, progress: Progress, fit: Fit = PLAIN
) -> Domain:
    """Read a domain of a named task, of which every image must be readable."""
    read = read_rows(found.domain, found.rows(classes), classes, size, rule, progress, fit)
    if read.bad:
        raise UserError(f"image {read.bad[0].file} {read.bad[0].reason}.")
    if not len(read.domain.test):
        raise UserError(
            f"domain '{found.domain}' has only {len(read.domain.train)} images, too few to hold out a test part, "
            "so add images or give it a 'test' folder."
        )
    return read.domain


def by_position(labels: Tensor) -> Tensor:
    """Tell for each image of a domain whether it is held out, as the papers do: position mod 10 in {8, 9}."""
    return torch.arange(len(labels)) % 10 >= 8


def by_class(labels: Tensor) -> Tensor:
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


HOLD_OUT: dict[Rule, Callable[[Tensor], Tensor]] = {
    "given": by_position,  # files that should come in parts, and do not
    "by-position": by_position,
    "by-class": by_class,
}


def _taken(images: Tensor, rows: Tensor) -> Tensor:
    """Some of the images; those of one stretch are not copied."""
    if len(rows) and torch.equal(rows, torch.arange(int(rows[0]), int(rows[0]) + len(rows))):
        return images[int(rows[0]) : int(rows[0]) + len(rows)]
    return images[rows]
