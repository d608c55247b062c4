"""The papers' residual networks: a 3×3 stem without pooling, four stages, global average pooling."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protolith.models.blocks import Block
from protolith.models.registry import register_model


class ResNet(nn.Module):
    """A residual network whose stages are `width`, 2, 4 and 8 × `width` channels wide.

    In training it can compute in bfloat16 (weights, statistics and features stay float32); tests never do.
    """

    in_bfloat16 = False

    def __init__(self, blocks: tuple[int, int, int, int], classes: int, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, depth in enumerate(blocks):
            outputs = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (depth - 1)
            layers = [Block(inputs if i == 0 else outputs, outputs, stride) for i, stride in enumerate(strides)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
            inputs = outputs
        self.head = nn.Linear(inputs, classes)

    def features(self, images: Tensor) -> Tensor:
        """Encode images into non-negative features of 8 × `width` numbers."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.in_bfloat16 and self.training):
            return self._maps(images).float().mean(dim=(2, 3))

    def _maps(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)), inplace=True)
        for stage in range(1, 5):
            x = self.get_submodule(f"layer{stage}")(x)
        return x

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: one row of logits each."""
        logits: Tensor = self.head(self.features(images))
        return logits


@register_model("resnet10")
def resnet10(classes: int, width: int) -> ResNet:
    """ResNet-10: one block a stage (4,903,242 parameters at width 64 and 10 classes)."""
    return ResNet((1, 1, 1, 1), classes, width)


@register_model("resnet18")
def resnet18(classes: int, width: int) -> ResNet:
    """ResNet-18: two blocks a stage (11,173,962 parameters at width 64 and 10 classes)."""
    return ResNet((2, 2, 2, 2), classes, width)
