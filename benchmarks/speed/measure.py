"""Timing: interleaved repeats, medians with their spread, and what the machine can do at best."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protolith.engines.local import ENVIRONMENT
from protolith.machine import cores
from protolith.runs.directory import processor

ROOT = Path(__file__).parents[2]  # where `benchmarks` is found


@dataclass(frozen=True)
class Timing:
    """The median of some repeats, and the lowest and highest of them."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> "Timing":
        """Summarise repeats."""
        return cls(statistics.median(values), min(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g} to {self.high:.4g})"


def interleaved(work: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, Timing]:
    """Measure several things in turn, again and again, so that a slow minute of the machine hits all of them."""
    found: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(repeats):
        for name, measure in work.items():
            found[name].append(measure())
    return {name: Timing.of(values) for name, values in found.items()}


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def matmul_gflops(size: int = 2048, calls: int = 6) -> float:
    """The machine's peak: float32 matrix products on all cores, in 10⁹ operations a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        a, b = torch.rand(size, size), torch.rand(size, size)
        out = torch.empty(size, size)
        torch.mm(a, b, out=out)
        return calls * 2 * size**3 / seconds(lambda: [torch.mm(a, b, out=out) for _ in range(calls)]) / 1e9
    finally:
        torch.set_num_threads(before)


def training_operations(model: nn.Module, size: int) -> int:
    """Floating-point operations of a training step on one image: forward, weights' and inputs' gradients.

    Only products of convolutions and linear layers count; the first layer needs no gradient for its input.
    """
    products: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        places = output[0, 0].numel() if output.dim() == 4 else 1
        products.append(weight.numel() * places)

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    return 2 * (3 * sum(products) - products[0])


def in_process(code: str, *arguments: object, worker: bool = False) -> dict[str, Any]:
    """Run a function of this package, `module:function`, in a fresh process (as workers are); it returns a dict."""
    command = [sys.executable, "-m", "benchmarks.speed.fresh", code, json.dumps(arguments)]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).rstrip(os.pathsep)
    environment = {**os.environ, **(ENVIRONMENT if worker else {}), "PYTHONPATH": path}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def peak_megabytes() -> float:
    """The most memory that this process has had; where it cannot be told, nothing."""
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cores": cores(), "processor": processor(), "torch": torch.__version__, "load": os.getloadavg()[0]}
