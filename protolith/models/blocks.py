"""The residual block of ResNet-10 and ResNet-18."""

import torch.nn.functional as F
from torch import Tensor, nn


class Pointwise(nn.Conv2d):
    """A 1×1 convolution with a stride, also for fewer than 16 inputs.

    There, in channels-last memory, oneDNN's strided kernel writes past its buffers, from some image size on, and the
    process dies; the same pixels are taken by slicing instead.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Convolve every pixel that the stride leaves."""
        if self.in_channels >= 16:
            return super().forward(x)
        return F.conv2d(x[:, :, :: self.stride[0], :: self.stride[1]], self.weight)


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(Pointwise(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Add the shortcut to the residual."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)), inplace=True)
        out = self.bn2(self.conv2(out))
        return F.relu(out.add_(shortcut), inplace=True)
