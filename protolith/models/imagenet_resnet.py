"""ResNet-18 as torchvision names and computes it: a 7×7 stem with a stride and pooling, then the papers' blocks."""

import torch.nn.functional as F
from torch import Tensor, nn

from protolith.models.blocks import Block

WIDTH = 64


class ImageNetResNet18(nn.Module):
    """The network below the head: features are the mean over space of the last stage's 512 maps."""

    length = 8 * WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, WIDTH, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        self.layer1 = _stage(WIDTH, WIDTH, 1)
        self.layer2 = _stage(WIDTH, 2 * WIDTH, 2)
        self.layer3 = _stage(2 * WIDTH, 4 * WIDTH, 2)
        self.layer4 = _stage(4 * WIDTH, 8 * WIDTH, 2)

    def lower(self, images: Tensor) -> Tensor:
        """Maps [n, 256, 14, 14] of images of 224 pixels: all but the last stage."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(images)), inplace=True), 3, 2, 1)
        out: Tensor = self.layer3(self.layer2(self.layer1(x)))
        return out

    def upper(self, maps: Tensor) -> Tensor:
        """Features [n, 512] from the maps of `lower`."""
        out: Tensor = self.layer4(maps)
        return out.mean(dim=(2, 3))

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return self.upper(self.lower(images))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), Block(outputs, outputs, 1))


def as_ours(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of torchvision, whose names are ours but for the head, which becomes `imagenet`."""
    return {name.replace("fc.", "imagenet.", 1): tensor for name, tensor in weights.items()}
