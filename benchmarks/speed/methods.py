"""What each method costs beside FedAvg, and how much of that its arithmetic explains."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from torch.utils.flop_counter import FlopCounterMode

from benchmarks.speed.measure import Timing, in_process, interleaved
from benchmarks.speed.parts import Line, Size, line
from protolith.methods.registry import all_methods
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.round import Round
from protolith.runs.runner import Observer

ROUNDS = 3
MOST = 1.25  # times what the arithmetic explains


def method_cost(size: Size) -> Iterator[Line]:
    """Seconds of a round as a multiple of FedAvg's, beside the multiple of operations."""
    names = list(all_methods())
    counted = {name: in_process("methods:operations", name)["operations"] for name in names}
    work = {name: lambda name=name: in_process("methods:training_seconds", name)["seconds"] for name in names}
    found = interleaved(work, size.repeats)
    base = found["fedavg"]
    for name in names:
        times = found[name]
        measured = Timing(*(value / base.median for value in (times.median, times.low, times.high)))
        explained = counted[name] / counted["fedavg"]
        yield line(
            f"{name}: a round beside FedAvg's", measured, "×", explained=round(explained, 3), at_most=MOST * explained
        )


def training_seconds(name: str) -> dict[str, float]:
    """The fastest of a method's later rounds, everything in this process and on one thread."""
    return {"seconds": min(_rounds(name, Observer())[1:])}


def operations(name: str) -> dict[str, int]:
    """The floating-point operations of a method's later rounds, tests included."""
    with FlopCounterMode(display=False) as counter:
        first = AfterFirst(counter)
        _rounds(name, first)
    return {"operations": counter.get_total_flops() - first.operations}


class AfterFirst(Observer):
    """Remembers what the first round took: what a method does from its second round on counts."""

    def __init__(self, counter: FlopCounterMode) -> None:
        self.counter = counter
        self.operations = 0

    def round_done(self, done: Round) -> None:
        """Look at the counter."""
        if done.round == 1:
            self.operations = self.counter.get_total_flops()


def _rounds(name: str, observer: Observer) -> list[float]:
    """Seconds of each round: training, the server's step and tests (of some methods a client tests its own model)."""
    config = resolve(
        [
            {
                "task": "mini",
                "method": name,
                "rounds": ROUNDS,
                "workers": 0,
                "diagnostics": False,
                "model": {"width": 16},
                "training": {"epochs": 2, "batch": 32},
                "protocol": {"clients": {"pen": 1, "photo": 1, "street": 1}, "samples": 96},
            }
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        run = runner.start(config, Path(folder) / "run", observer)
        return [entry.seconds["train"] + entry.seconds["evaluate"] for entry in run.metrics()]
