"""The names of the networks. Anything with `features(images)` and `head` can be registered."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

from protolith.doors import brought
from protolith.errors import UserError, unknown
from protolith.models.backbones import backbone_names, empty_backbone, is_backbone, open_backbone
from protolith.models.spec import SIZE, InputSpec
from protolith.models.tuned import Above, Pretrained, Tune, tuned
from protolith.seeds import derive


@runtime_checkable
class Network(Protocol):
    """What a method needs of a network: features [n, d] of images [n, 3, h, w], and a head on them."""

    head: nn.Module

    def features(self, images: Tensor) -> Tensor:
        """Encode images into features."""
        ...


Build = Callable[[int, int], nn.Module]  # (number of classes, width) -> network
_BUILDERS: dict[str, Build] = {}
BuildType = TypeVar("BuildType", bound=Build)


def register_model(name: str) -> Callable[[BuildType], BuildType]:
    """Register a function `build(classes, width) -> network` under a name."""

    def add(build: BuildType) -> BuildType:
        _BUILDERS[name] = build
        return build

    return add


@cache
def _installed() -> frozenset[str]:
    """Register what other packages bring, under the names of their entry points; say which these are."""
    found = brought("models", "model, a function (classes, width) -> network", callable)
    if taken := found.keys() & {name for name, build in _BUILDERS.items() if build.__module__.startswith("protolith.")}:
        raise UserError(f"an entry point of protolith.models has the name of a network of ours, '{min(taken)}'.")
    for name, build in found.items():
        _BUILDERS.setdefault(name, build)
    return frozenset(found)


def model_names() -> list[str]:
    """Every registered network, then every backbone."""
    _installed()
    return sorted(_BUILDERS) + backbone_names()


def builders() -> dict[str, Build]:
    """What builds each registered network, by its name."""
    _installed()
    return dict(sorted(_BUILDERS.items()))


def check_model(name: str) -> None:
    """Refuse a name that is neither a registered network nor a backbone."""
    _installed()
    if name not in _BUILDERS and not is_backbone(name):
        raise unknown("model", name, model_names())


def only_here(name: str) -> bool:
    """Tell whether a network was registered by the user, so that workers know it only through a plug-in."""
    return name in _BUILDERS.keys() - _installed() and not _BUILDERS[name].__module__.startswith("protolith.")


def build_model(
    name: str,
    classes: int,
    width: int,
    seed: int,
    size: int | None = None,
    weights: str = "",
    sha256: str = "",
    empty: bool = False,
    said: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a network whose initial weights depend on the seed alone; a backbone's are those of its file.

    One that does not say what it wants to see (`spec`) takes the papers' colours at any size. `sha256` is what a
    backbone's weights must have; `empty` leaves them out, for a network that is filled from a model's file, and `said`
    is what that file says of the backbone.
    """
    check_model(name)
    if name not in _BUILDERS:
        if empty:
            above = (said or {}).get("projection", 0), (said or {}).get("scale", 0.0)
            return Pretrained(empty_backbone(name, size, said), classes, *above)
        return build_tuned(name, classes, seed, "all", size, weights, sha256)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        model = _BUILDERS[name](classes, width)
    if not isinstance(model, Network) or not isinstance(cast(object, model.head), nn.Module):
        raise UserError(f"model '{name}' must have a method features(images) and a module head.")
    module = cast(nn.Module, model)
    if not isinstance(getattr(module, "spec", None), InputSpec):
        module.spec = InputSpec(SIZE if size is None else size)  # type: ignore[assignment]
    return module


def build_tuned(
    name: str,
    classes: int,
    seed: int,
    tune: Tune,
    size: int | None = None,
    weights: str = "",
    sha256: str = "",
    projection: int = 0,
    scale: float = 0.0,
) -> Above:
    """Build what is trained of a pretrained network; what is above the backbone depends on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "model"))
        scratch = tune == "scratch"
        backbone = empty_backbone(name, size) if scratch else open_backbone(name, weights, size, sha256)
    return tuned(backbone, classes, seed, tune, projection, scale)
