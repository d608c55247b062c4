"""Domains and tasks: labelled images that share a look, and several of them with the same classes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

# ImageNet statistics, which the papers' code uses for every task.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Split:
    """Images as one uint8 tensor [n, height, width, 3] and labels as one int64 tensor [n].

    Encoded images are float features [n, views, …] instead; view 0 is the image itself. `colours` [n, 6] is then what
    `styles.statistics` says of the images, so that styles can be exchanged without them.
    """

    images: Tensor
    labels: Tensor
    colours: Tensor | None = None

    def __post_init__(self) -> None:
        n, shape = len(self.labels), tuple(self.images.shape)
        pictures = self.images.dtype == torch.uint8 and len(shape) == 4 and shape[3] == 3
        if not pictures and not (self.encoded and len(shape) >= 3):
            raise ValueError(
                "images must be uint8 [n, height, width, 3], or float32 or float16 [n, views, …], not "
                f"{self.images.dtype} {shape}"
            )
        if self.labels.dtype != torch.int64 or len(self.images) != n:
            raise ValueError(f"labels must be int64 [{len(self.images)}], not {self.labels.dtype} [{n}]")
        if self.colours is not None and (self.colours.dtype != torch.float32 or self.colours.shape != (n, 6)):
            raise ValueError(f"colours must be float32 [{n}, 6], not {self.colours.dtype} {tuple(self.colours.shape)}")

    @property
    def encoded(self) -> bool:
        """Whether the images are features of a frozen backbone."""
        return self.images.dtype in (torch.float32, torch.float16)

    def __len__(self) -> int:
        return len(self.labels)

    def counts(self, classes: int) -> list[int]:
        """Count the images of each class."""
        return [int(count) for count in torch.bincount(self.labels, minlength=classes)]


@dataclass(frozen=True)
class Domain:
    """A named set of labelled images that share a look, in a training and a test part."""

    name: str
    train: Split
    test: Split


@dataclass(frozen=True)
class Task:
    """Several domains with the same classes.

    `file` is the decoded task on disk: worker processes map it instead of receiving the images.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    notes: tuple[str, ...] = ()
    file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if len({domain.name for domain in self.domains}) != len(self.domains):
            raise ValueError(f"task {self.name}: two domains have the same name")

    @property
    def size(self) -> int:
        """Height and width of the images; 0 where they are encoded."""
        first = self.domains[0].train
        return 0 if first.encoded else int(first.images.shape[1])

    @property
    def by_name(self) -> Mapping[str, Domain]:
        """The domains by their names."""
        return {domain.name: domain for domain in self.domains}
