"""FedAvg as research code is usually written: what a user would run instead.

One process, PyTorch's default threads and memory layout, a DataLoader that transforms image by image, a copy
of the model for every client, averaging of state dicts, and a test on every domain in every round. It is the
same FedAvg: same clients, same initial weights, same optimiser; only the order of the images is another.

Given the stored files of a task, it decodes and resizes an image whenever it is used, as public code for
Office-Caltech10 and PACS does (torchvision's ImageFolder); without, it takes the decoded images.
"""

import copy
import io
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.speed.slow_losses import per_sample
from protolith.data.domain import MEAN, STD, Split, Task
from protolith.data.protocols import allocate, select
from protolith.data.reading import by_position
from protolith.data.sources import parquet
from protolith.federation.setup import Setup
from protolith.models import build_model


class Images(Dataset[tuple[Tensor, int]]):
    """Images of a client or a test set, transformed one by one."""

    def __init__(self, split: Split, train: bool, padding: int, flip: bool, files: Sequence[bytes] = ()) -> None:
        self.split = split
        self.files = files
        self.train = train
        self.padding = padding
        self.flip = flip

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.pixels(index).permute(2, 0, 1).float() / 255
        if self.train and self.padding:
            size = image.shape[1]
            image = nn.functional.pad(image, (self.padding,) * 4)
            top, left = torch.randint(0, 2 * self.padding + 1, (2,)).tolist()
            image = image[:, top : top + size, left : left + size]
        if self.train and self.flip and float(torch.rand(())) < 0.5:
            image = image.flip(2)
        return (image - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1), int(
            self.split.labels[index]
        )

    def pixels(self, index: int) -> Tensor:
        """The image as it is in memory, or decoded from its file."""
        if not self.files:
            return self.split.images[index]
        size = self.split.images.shape[1]
        with Image.open(io.BytesIO(self.files[index])) as image:
            return torch.from_numpy(np.array(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)))


class PlainLoop:
    """The clients' loaders and models, and the rounds."""

    def __init__(self, setup: Setup, task: Task, files: Mapping[str, Sequence[bytes]] | None = None) -> None:
        self.setup = setup
        training = setup.training

        def stored(domain: str, rows: Tensor) -> Sequence[bytes]:
            return [files[domain][row] for row in rows.tolist()] if files else ()

        allocation = allocate(task, setup.protocol, setup.seed)
        self.loaders = [
            DataLoader(
                Images(
                    select(task.by_name[c.domain], c.rows),
                    True,
                    training.crop,
                    training.flip,
                    stored(c.domain, c.rows),
                ),
                batch_size=training.batch,
                shuffle=True,
            )
            for c in allocation.clients
        ]
        self.sizes = [len(client.rows) for client in allocation.clients]
        self.tests = {
            test.name: DataLoader(
                Images(select(task.by_name[test.domain], test.rows), False, 0, False, stored(test.domain, test.rows)),
                batch_size=64,
            )
            for test in allocation.tests
        }
        self.model = build_model(setup.model.name, len(task.classes), setup.model.width, setup.seed)
        self.models = [copy.deepcopy(self.model) for _ in self.loaders]

    def round(self) -> dict[str, float]:
        """Train every client, average, test; returns the accuracies."""
        for model, loader in zip(self.models, self.loaders, strict=True):
            model.load_state_dict(self.model.state_dict())
            self.train(model, loader)
        self.average()
        return {name: self.test(loader) for name, loader in self.tests.items()}

    def train(self, model: nn.Module, loader: "DataLoader[tuple[Tensor, int]]") -> None:
        """The local epochs of one client."""
        t = self.setup.training
        optimizer = torch.optim.SGD(model.parameters(), lr=t.lr, momentum=t.momentum, weight_decay=t.weight_decay)
        model.train()
        for _ in range(t.epochs):
            for images, labels in loader:
                loss = self.loss(model, images, labels)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()

    def loss(self, model: Any, images: Tensor, labels: Tensor) -> Tensor:
        """What a client minimises."""
        return nn.functional.cross_entropy(model(images), labels)

    def average(self) -> None:
        """The weighted mean of all state dicts, buffers included."""
        total = sum(self.sizes)
        states = [model.state_dict() for model in self.models]
        mean: dict[str, Tensor] = {}
        for name, like in states[0].items():
            summed = sum(state[name].double() * (size / total) for state, size in zip(states, self.sizes, strict=True))
            assert isinstance(summed, Tensor)
            mean[name] = summed.to(like.dtype)
        self.model.load_state_dict(mean)

    def test(self, loader: "DataLoader[tuple[Tensor, int]]") -> float:
        """Accuracy of the global model in per cent."""
        self.model.eval()
        correct = total = 0
        with torch.no_grad():
            for images, labels in loader:
                correct += int((self.model(images).argmax(1) == labels).sum())
                total += len(labels)
        return 100 * correct / total


class PlainFPL(PlainLoop):
    """FPL's objective, sample by sample, against clusters that stay the same (the server's part is left out)."""

    clusters: Tensor
    of_class: Tensor

    def loss(self, model: Any, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, contrast and alignment."""
        features = model.features(images)
        tau = self.setup.params["tau"]
        contrast, distance = per_sample(features, labels, self.clusters, self.of_class, tau)
        return nn.functional.cross_entropy(model.head(features), labels) + contrast + distance


def stored_files(task: Task, data: str) -> dict[str, list[bytes]]:
    """The encoded images of a task's domains, training images first, then test images."""
    found = {}
    for domain in task.domains:
        files = parquet.stored(Path(data) / task.name, domain.name, task.classes)
        order = torch.argsort(by_position(torch.zeros(len(files))), stable=True)  # training images first
        found[domain.name] = [files[index] for index in order.tolist()]
    return found


def round_seconds(loop: PlainLoop, rounds: int) -> Sequence[float]:
    """Time some rounds, after one that is not counted."""
    found = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        loop.round()
        found.append(time.perf_counter() - began)
    return found[1:]
