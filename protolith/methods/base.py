"""What a method is made of: options, a client half and a server half."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from protolith.data.augment import crop, flip, one_view
from protolith.data.domain import Split
from protolith.data.styles import Draw
from protolith.devices import widest
from protolith.methods.averaging import Pooling
from protolith.models.spec import see
from protolith.records import Record, Upload, clone

LARGEST = 1e15  # larger numbers are refused: their squares, and sums of these, would leave float32


class Params(BaseModel):
    """The options of a method. Every field has a default and a description that gives its reason."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # What the papers use on a task where it differs from the field's default: task -> option -> value.
    by_task: ClassVar[dict[str, dict[str, Any]]] = {}


class Training(BaseModel):
    """How a client trains locally."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(10, ge=1, description="local epochs in a round")
    batch: int = Field(64, ge=1, description="images in a batch (the last one of an epoch may be smaller)")
    lr: float = Field(0.01, gt=0, description="learning rate of SGD")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="the learning rate over the rounds: the same (as in the papers), or half a cosine to 0"
    )
    warmup: int = Field(0, ge=0, description="rounds in which the learning rate rises evenly to its full value")
    class_weights: bool = Field(
        False, description="weigh classes in the cross-entropy so that all that a client holds count alike"
    )
    below: float = Field(
        0.1, gt=0, description="learning rate of what is trained of a pretrained backbone, as a share of lr"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD; the optimiser is new in every round")
    weight_decay: float = Field(1e-5, ge=0, description="weight decay of SGD")
    crop: int = Field(4, ge=0, description="random shifts of the training images by up to so many pixels")
    flip: bool = Field(True, description="random mirroring of the training images")
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="of the encoder's arithmetic in training; bfloat16 is faster where the processor has it"
    )
    style_exchange: float = Field(
        0.0,
        ge=0,
        le=1,
        description="probability that a training image takes the colours of another site's style; 0: off",
    )
    style_draw: Draw = Field(
        "independent",
        description="how an image's colours are drawn from a style: each channel by itself, all three "
        "together (joint), or the style's mean; fixed: from one style that is nobody's",
    )
    style_balance: bool = Field(
        False, description="average models so that every style counts alike, as Strata does; off: as the method does"
    )

    def rate(self, round_: int, rounds: int) -> float:
        """The learning rate of a round (the first is 0) of so many."""
        if round_ < self.warmup:
            return self.lr * (round_ + 1) / (self.warmup + 1)
        if self.schedule == "constant":
            return self.lr
        return self.lr * 0.5 * (1.0 + math.cos(math.pi * (round_ - self.warmup) / max(1, rounds - self.warmup)))


@dataclass(frozen=True)
class Batch:
    """Images as the network wants them, with their labels."""

    images: Tensor
    labels: Tensor
    epoch: int
    rows: Tensor  # which of the client's images these are


@dataclass(frozen=True)
class Output:
    """What the network made of a batch."""

    features: Tensor
    logits: Tensor


class Around:
    """What stands around a client's work; here nothing does. `protolith.federation.layers` has what may."""

    def images(self, images: Tensor, client: "Context") -> Tensor:
        """Change stored images before they are augmented."""
        return images

    def features(self, features: Tensor, client: "Context") -> Tensor:
        """Change features before they are added up by class."""
        return features

    def totals(self, sums: Tensor, counts: Tensor, client: "Context") -> tuple[Tensor, Tensor]:
        """Change sums of features [K, d] and counts [K] before they become class means that are sent."""
        return sums, counts

    def upload(self, upload: Upload, client: "Context") -> Upload:
        """Change what goes to the server."""
        return upload


@dataclass
class Context:
    """Everything that a client's work depends on."""

    client: int
    round: int  # from 0, as its numbers are drawn; people and files count from 1
    rounds: int
    classes: int
    params: Any
    training: Training
    buffers: Literal["average", "local"]
    model: nn.Module
    data: Split
    weights: Record
    knowledge: Record
    memory: Record
    rng: torch.Generator
    seed: int
    device: torch.device
    run_seed: int = 0  # the same for all clients and rounds
    layers: Around = field(default_factory=Around)
    copy: Callable[[Record], Record] = clone  # how an upload's weights are copied: an engine may say where to


@dataclass(frozen=True)
class Roster:
    """What the server knows: how many images each client holds, the shape of the problem, how many become one."""

    counts: tuple[int, ...]
    classes: int
    features: int
    rounds: int
    buffers: frozenset[str] = frozenset()  # the network's tensors that are not trained
    pooling: Pooling = field(default_factory=Pooling)
    exact_counts: bool = True  # whether a client's counts by class add up to its number of images


@dataclass(frozen=True)
class Spec:
    """What a tensor in an upload must look like.

    A word in the shape is a length that the client chooses, the same wherever the word stands in its upload.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype = torch.float32
    least: float | None = None
    most: float | None = None

    def problem(self, tensor: Tensor, lengths: dict[str, int], within: bool = False) -> str | None:
        """Say what is wrong with a tensor, or nothing; `lengths` are those chosen so far, and are added to.

        With `within` its numbers, if they are floats, are known to be finite and not above `LARGEST`.
        """
        if not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            return "is not a plain tensor"
        if tensor.shape != self.shape and (fault := self._other_shape(list(tensor.shape), lengths)):
            return fault
        if tensor.dtype != self.dtype:
            return f"is {tensor.dtype} instead of {self.dtype}"
        unlimited = self.least is None and self.most is None
        if tensor.dtype == torch.bool or not tensor.numel() or (within and unlimited and tensor.is_floating_point()):
            return None
        lowest, highest = (float(number) for number in torch.aminmax(tensor))  # both are NaN where one number is
        if not (math.isfinite(lowest) and math.isfinite(highest)):
            return "has numbers that are not finite"
        least, most = (-LARGEST if self.least is None else self.least), (LARGEST if self.most is None else self.most)
        if lowest < least:
            return f"has numbers below {least:g}"
        if highest > most:
            return f"has numbers above {most:g}"
        return None

    def _other_shape(self, shape: list[int], lengths: dict[str, int]) -> str | None:
        if len(shape) == len(self.shape):
            chosen = {word: have for word, have in zip(self.shape, shape, strict=True) if isinstance(word, str)}
            lengths.update({word: have for word, have in chosen.items() if word not in lengths})
        wanted = [lengths.get(want, want) if isinstance(want, str) else want for want in self.shape]
        return f"has shape {shape} instead of {wanted}" if shape != wanted else None


@dataclass
class Terms:
    """Means of the loss terms over a round, kept as tensors so that training never waits for them."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)  # in how many steps there was such a term
    steps: int = 0

    def add(self, terms: dict[str, Tensor]) -> None:
        """Take in the terms of one step."""
        self.steps += 1
        for name, term in terms.items():
            value = term.detach().to(widest(term.device))
            self.sums[name] = self.sums[name] + value if name in self.sums else value
            self.times[name] = self.times.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        """Mean of each term over the steps that had it."""
        return {name: float(total) / self.times[name] for name, total in self.sums.items()}


def _augmented(
    data: Split, rows: Tensor, training: Training, rng: torch.Generator, restyle: Callable[[Tensor], Tensor]
) -> Tensor:
    """Some stored images, augmented; encoded ones were augmented before, and one of their views is drawn."""
    if data.encoded:
        return one_view(data.images[rows], rng)
    images = restyle(data.images[rows])
    if training.crop:
        images = crop(images, rng, training.crop)
    return flip(images, rng) if training.flip else images


def batches(
    data: Split,
    training: Training,
    rng: torch.Generator,
    model: nn.Module,
    epoch: int,
    restyle: Callable[[Tensor], Tensor] = lambda images: images,
) -> Iterator[Batch]:
    """Go once through a client's images in random order, augmented; `restyle` changes the stored images first."""
    order = torch.randperm(len(data), generator=rng)
    for rows in torch.split(order, training.batch):
        inputs = see(model, _augmented(data, rows, training, rng, restyle))
        yield Batch(inputs, data.labels[rows].to(inputs.device), epoch, rows)
