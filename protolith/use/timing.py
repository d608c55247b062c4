"""What settings take on this machine: measured, not guessed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F

from protolith.data.augment import to_input
from protolith.encoding.encoders import all_cores, by_torch
from protolith.federation.local_update import choose_device, one_thread
from protolith.machine import cores
from protolith.methods.sgd import SGD
from protolith.models import build_model
from protolith.models.backbones import open_backbone
from protolith.use.suggest import Amounts, Suggestion, busiest

HEADS = 0.3  # seconds of a round in which heads are trained, at most; measured on two cores with ten clients
ENCODED = 8  # images that are encoded to see how long one takes
FASTER = 4.0  # times as fast as PyTorch is ONNX Runtime, at least (benchmarks/encoding.py)
STEPS = 3  # steps that are timed, after one that is not


@dataclass(frozen=True)
class Estimate:
    """What a run is estimated to take on this machine."""

    seconds: float
    per_image: float  # seconds of training for one image, on one core


def estimate(found: Suggestion, amounts: Amounts) -> Estimate:
    """Time a few steps with these settings, and say what a run would take here."""
    if found.pretrained:
        each = seconds_to_encode(found.model, found.size)
        return Estimate(each * (sum(amounts.train) + amounts.test) + HEADS * found.rounds, each)
    train, test = seconds_per_image(found.size, found.width, found.batch, amounts.classes)
    trained, tested = busiest(found, amounts, cores())
    return Estimate(found.rounds * (trained * train + tested * test), train)


def seconds_to_encode(model: str, size: int) -> float:
    """Time a frozen backbone on a few images, in all cores: seconds for one, as what encodes here is about as fast."""
    encoder = by_torch(open_backbone(model, size=size), "features")
    images = torch.randint(0, 256, (ENCODED, size, size, 3), dtype=torch.uint8)
    with all_cores():
        each = _best(lambda: encoder.encode(images)) / ENCODED
    return each / FASTER if find_spec("onnxruntime") else each


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


def _best(step: Callable[[], object]) -> float:
    step()
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return sorted(times)[len(times) // 2]
