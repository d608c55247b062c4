"""A network of your own: `python my_model.py`, or `protolith run --plugin my_model.py --set model.name=small`."""

import sys

from torch import Tensor, nn

import protolith as pl


class Small(nn.Module):
    """Three convolutions. Every method needs two things of a network: `features` and `head`."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.encoder = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(4 * width, classes)

    def features(self, images: Tensor) -> Tensor:
        """Encode images [n, 3, h, w] into features [n, 4 × width]."""
        encoded: Tensor = self.encoder(images)
        return encoded

    def forward(self, images: Tensor) -> Tensor:
        """Classify images: a row of logits for each."""
        logits: Tensor = self.head(self.features(images))
        return logits


@pl.register_model("small")
def small(classes: int, width: int) -> Small:
    """Build the network."""
    return Small(classes, width)


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    run = pl.fit(
        "fpl",
        "mini",
        plugins=[__file__],
        rounds=rounds,
        model={"name": "small", "width": 32},
        training={"lr": 0.1, "batch": 16, "epochs": 3},
    )
    print(run.table())
    print(sum(p.numel() for p in run.model().parameters()), "parameters")
