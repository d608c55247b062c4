"""EfficientNet-Lite 0, 1 and 2: inverted residual blocks with ReLU6 and without squeeze-and-excitation.

Tan and Le, EfficientNet (ICML 2019), in the form of TensorFlow's "lite" release: the stem's and the last convolution's
widths and the first and last stage's depths do not scale. Every convolution pads as TensorFlow's SAME does, which for
a stride of 2 and an even size is one pixel more below and to the right.
"""

import math
import re

import torch.nn.functional as F
from torch import Tensor, nn

# Of each stage: blocks, kernel, stride, expansion, channels.
STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112), (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)  # fmt: skip
SPLIT = 5  # `lower` ends with the first block of this stage, the last one that makes the maps smaller
STEM, LENGTH, ROUND = 32, 1280, 8
SCALES = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}  # width, depth
PARTS = {"_expand_conv": "expand.conv", "_bn0": "expand.norm", "_depthwise_conv": "depth.conv", "_bn1": "depth.norm",
         "_project_conv": "project.conv", "_bn2": "project.norm"}  # fmt: skip
WHOLE = {
    "_conv_stem": "stem.conv",
    "_bn0": "stem.norm",
    "_conv_head": "last.conv",
    "_bn1": "last.norm",
    "_fc": "imagenet",
}


class Normed(nn.Module):
    """A convolution padded as SAME, batch normalisation, and ReLU6 where wanted."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, active: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
        self.kernel, self.stride, self.active = kernel, stride, active

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, normalise, cut off."""
        down, right = (self._padding(int(side)) for side in x.shape[2:])
        if down or right:
            x = F.pad(x, (right // 2, right - right // 2, down // 2, down - down // 2))
        x = self.norm(self.conv(x))
        return F.relu6(x, inplace=True) if self.active else x

    def _padding(self, side: int) -> int:
        return max((math.ceil(side / self.stride) - 1) * self.stride + self.kernel - side, 0)


class Inverted(nn.Module):
    """Expand the channels, convolve each alone, project them; with a shortcut where the shape stays."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = Normed(inputs, wide) if expansion > 1 else nn.Identity()
        self.depth = Normed(wide, wide, kernel, stride, groups=wide)
        self.project = Normed(wide, outputs, active=False)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Transform maps."""
        out: Tensor = self.project(self.depth(self.expand(x)))
        return out + x if self.shortcut else out


class EfficientNetLite(nn.Module):
    """The network below the head: features are the mean over space of the last convolution's 1,280 maps."""

    length = LENGTH

    def __init__(self, variant: int) -> None:
        super().__init__()
        width, depth = SCALES[variant]
        self.stem = Normed(3, STEM, 3, 2)
        blocks: list[nn.Module] = []
        inputs = STEM
        for stage, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
            outputs = _rounded(channels * width)
            fixed = stage in (0, len(STAGES) - 1)
            for block in range(repeats if fixed else math.ceil(repeats * depth)):
                blocks.append(Inverted(inputs, outputs, kernel, stride if block == 0 else 1, expansion))
                inputs = outputs
                if stage == SPLIT and block == 0:
                    self.split = len(blocks)
        self.blocks = nn.ModuleList(blocks)
        self.last = Normed(inputs, LENGTH)

    def lower(self, images: Tensor) -> Tensor:
        """Maps [n, 192, 7, 7] of images of 224 pixels (variants 0 and 1), from stem and blocks 0 to `split` − 1."""
        x: Tensor = self.stem(images)
        for block in self.blocks[: self.split]:
            x = block(x)
        return x

    def upper(self, maps: Tensor) -> Tensor:
        """Features [n, 1280] from the maps of `lower`: the other blocks (variant 0: 12 to 15), the last convolution."""
        x = maps
        for block in self.blocks[self.split :]:
            x = block(x)
        out: Tensor = self.last(x)
        return out.mean(dim=(2, 3))

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return self.upper(self.lower(images))


def renamed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the package by the names of this file; its head becomes `imagenet`."""
    return {_renamed(name): tensor for name, tensor in weights.items()}


def _renamed(name: str) -> str:
    if inside := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
        block, part, last = inside.groups()
        return f"blocks.{block}.{PARTS.get(part, part)}.{last}"
    part, _, last = name.partition(".")
    return f"{WHOLE[part]}.{last}" if part in WHOLE else name


def _rounded(channels: float) -> int:
    """The nearest multiple of 8 that takes away at most a tenth."""
    whole = max(ROUND, int(channels + ROUND / 2) // ROUND * ROUND)
    return whole if whole >= 0.9 * channels else whole + ROUND
