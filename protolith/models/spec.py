"""What a network wants to see. It is saved with the model, and training, tests, `predict` and ONNX obey it."""

from dataclasses import asdict, dataclass, replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from protolith.data.augment import to_input
from protolith.data.domain import MEAN, STD
from protolith.data.sources.decode import Fit, Interpolation, Resize

SIZE = 32  # pixels, the papers'


@dataclass(frozen=True)
class InputSpec:
    """Size, colours and geometry of a network's input."""

    size: int = SIZE
    mean: tuple[float, ...] = MEAN
    std: tuple[float, ...] = STD
    resize: Resize = "squash"
    interpolation: Interpolation = "bilinear"
    share: float = 1.0  # of the shorter side that a crop keeps; of both sides where an image is squashed

    @property
    def fit(self) -> Fit:
        """How an image of any shape becomes a square."""
        return Fit(self.resize, self.interpolation, self.share)

    def inputs(self, images: Tensor, device: torch.device) -> Tensor:
        """Stored images [n, h, w, 3] as the network's input [n, 3, h, w]."""
        return to_input(images, device, self.mean, self.std)

    def plain(self) -> dict[str, Any]:
        """For a file: plain values."""
        values = asdict(self) | {"mean": list(self.mean), "std": list(self.std)}
        return values if self.share != 1.0 else {name: value for name, value in values.items() if name != "share"}

    @classmethod
    def of(cls, values: Any) -> "InputSpec":
        """Read what a file says; ValueError where it is no such thing."""
        try:
            spec = cls(**{**values, "mean": tuple(values["mean"]), "std": tuple(values["std"])})
            sound = (
                all(len(part) == 3 and all(isinstance(v, float) for v in part) for part in (spec.mean, spec.std))
                and spec.resize in get_args(Resize)
                and spec.interpolation in get_args(Interpolation)
                and type(spec.size) is int
                and spec.size > 0
                and isinstance(spec.share, float)
                and 0 < spec.share <= 1
            )
        except (TypeError, KeyError, AttributeError):
            sound = False
        if not sound:
            raise ValueError("what it says of its input cannot be")
        return spec


def at_size(spec: InputSpec, size: int | None) -> InputSpec:
    """The same input at another size, where one is given."""
    return spec if size is None else replace(spec, size=size)


def spec_of(model: nn.Module) -> InputSpec:
    """What a network wants to see; one that says nothing, what the papers' networks do."""
    spec = getattr(model, "spec", None)
    return spec if isinstance(spec, InputSpec) else InputSpec()


def see(model: nn.Module, images: Tensor) -> Tensor:
    """Stored images as this network wants to see them, where it is; of encoded ones the first view."""
    device = next(model.parameters()).device
    if images.is_floating_point():
        return images[:, 0].to(device, torch.float32)
    return spec_of(model).inputs(images, device)
