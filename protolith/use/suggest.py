"""Settings that fit the data and this machine, with a time that was measured and not guessed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from protolith.data.augment import to_input
from protolith.federation.local_update import choose_device, one_thread
from protolith.machine import cores
from protolith.methods.sgd import SGD
from protolith.models import build_model

SIZES = (32, 48, 64, 96, 128, 160, 224)
WIDTHS = (8, 16, 32, 64)
BUDGET = 3600.0  # seconds that a suggested run may take here
STEPS = 3  # steps that are timed, after one that is not
LEAST_STEPS = 300  # of SGD that a site should make in a run


@dataclass(frozen=True)
class Suggestion:
    """Settings for a first run, and what they are estimated to take on this machine."""

    size: int
    width: int
    batch: int
    rounds: int
    epochs: int
    seconds: float
    per_image: float  # seconds of training for one image, on one core

    def options(self) -> str:
        """The settings as options of `protolith run`."""
        settings = {"size": self.size, "width": self.width, "batch": self.batch, "epochs": self.epochs}
        return " ".join([f"--rounds {self.rounds}", *(f"--set {key}={value}" for key, value in settings.items())])


@dataclass(frozen=True)
class Amounts:
    """What the time and the settings depend on: images by site, the shorter side of the median image, classes."""

    train: Sequence[int]
    test: int
    side: int
    classes: int


def suggest(amounts: Amounts, budget: float = BUDGET) -> Suggestion:
    """Suggest settings; where they would take longer than the budget, smaller images, then a narrower network."""
    found = _wanted(amounts)
    while True:
        found = _timed(found, amounts)
        if found.seconds <= budget:
            return found
        if found.size > SIZES[0]:
            found = replace(found, size=SIZES[SIZES.index(found.size) - 1])
        elif found.width > WIDTHS[0]:
            found = replace(found, width=WIDTHS[WIDTHS.index(found.width) - 1])
        else:
            return found


def _wanted(amounts: Amounts) -> Suggestion:
    """What the data deserve, whatever it takes."""
    total = sum(amounts.train)
    size = max(size for size in SIZES if size <= max(amounts.side, SIZES[0]))
    width = 16 if total < 5_000 else 32 if total < 50_000 else 64
    smallest = min(amounts.train)
    batch = 16 if smallest < 500 else 32 if smallest < 5_000 else 64
    epochs = 5 if smallest < 5_000 else 2
    steps = epochs * max(1, smallest // batch)  # of the site with the fewest images, in a round
    rounds = min(100, max(20, -(-LEAST_STEPS // steps)))
    return Suggestion(size, width, batch, rounds, epochs, 0.0, 0.0)


def _timed(found: Suggestion, amounts: Amounts) -> Suggestion:
    train, test = seconds_per_image(found.size, found.width, found.batch, amounts.classes)
    workers = min(cores(), len(amounts.train))
    busiest = max(sum(amounts.train) / workers, max(amounts.train))  # a site's work is not divided
    each = busiest * found.epochs * train + amounts.test * test / workers
    return replace(found, seconds=each * found.rounds, per_image=train)


def seconds_per_image(size: int, width: int, batch: int, classes: int) -> tuple[float, float]:
    """Time a few steps of training and of testing on one core, as a worker makes them: seconds for one image."""
    device = choose_device("auto")
    model = build_model("resnet10", max(classes, 2), width, seed=0)
    model = model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randint(0, 256, (batch, size, size, 3), dtype=torch.uint8)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def train() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(to_input(images, device)), labels))
        optimizer.step()

    def test() -> None:
        with torch.inference_mode():
            model(to_input(images, device)).argmax(1).cpu()

    with one_thread():
        model.train()
        trained = _best(train)
        model.eval()
        return trained / batch, _best(test) / batch


def _best(step: Callable[[], None]) -> float:
    step()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]


def parameters(model: nn.Module) -> int:
    """Count the numbers that a network learns."""
    return sum(parameter.numel() for parameter in model.parameters())
