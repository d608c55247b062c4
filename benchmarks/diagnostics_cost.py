"""What do diagnostics cost a round? Runs with and without them take turns, so that both see the same machine.

    python benchmarks/diagnostics_cost.py --method fpl --repeats 8 --rounds 6 --set width=4

There are two arms without diagnostics: the ratio between them would be 1 on a quiet machine, and says how far the
ratio with / without can be trusted. Ratios are of the rounds' medians, by the clock and by the processor's time (all
work is done in this process), which other programs on the machine disturb less. The third line is the share of a round
that was spent in the code that saves prototypes; the last what predictions and features take, once, after all rounds.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protolith.runs import runner
from protolith.runs.config import parse_set, resolve
from protolith.runs.diagnostics import PrototypeLog
from protolith.runs.round import Round
from protolith.runs.runner import Observer

ARMS = {"without": False, "with": True, "without again": False}
spent: dict[str, float] = {"round": 0.0, "end": 0.0}


class Clock(Observer):
    """Seconds of every round but the first, which warms up: by the clock, and of the processor."""

    def __init__(self) -> None:
        self.rounds: list[tuple[float, float]] = []
        self.last: tuple[float, float] | None = None

    def round_done(self, done: Round) -> None:
        now = (time.perf_counter(), time.process_time())
        if self.last:
            self.rounds.append((now[0] - self.last[0], now[1] - self.last[1]))
        self.last = now


def timed(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    def measured(*arguments: Any) -> Any:
        began = time.perf_counter()
        result = function(*arguments)
        spent[key] += time.perf_counter() - began
        return result

    return measured


def run(out: Path, diagnostics: bool, options: argparse.Namespace) -> list[tuple[float, float]]:
    layers = [{"method": options.method, "rounds": options.rounds, "workers": 0, "training": {"epochs": 1}}]
    config = resolve([*layers, parse_set(options.set, options.method), {"diagnostics": diagnostics}])
    clock = Clock()
    runner.start(config, out, clock)
    return clock.rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fpl")
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    PrototypeLog.hear = timed(PrototypeLog.hear, "round")  # type: ignore[method-assign]
    PrototypeLog.write = timed(PrototypeLog.write, "round")  # type: ignore[method-assign]
    runner.write_tests = timed(runner.write_tests, "end")  # type: ignore[attr-defined]
    found: dict[str, list[tuple[float, float]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            turn = repeat % len(ARMS)
            for arm in [*ARMS][turn:] + [*ARMS][:turn]:
                found[arm] += run(Path(folder) / f"{repeat}-{arm}", ARMS[arm], options)
    for which, name in enumerate(("clock", "processor")):
        middle = {arm: statistics.median(times[which] for times in rounds) for arm, rounds in found.items()}
        shown = ", ".join(f"{arm} {value:.3f} s" for arm, value in middle.items())
        ratio, control = (middle[arm] / middle["without"] for arm in ("with", "without again"))
        print(f"{options.method}, {name}: {shown}; with / without {ratio:.3f}, control {control:.3f}")
    rounds = options.repeats * options.rounds
    share = spent["round"] / rounds / statistics.median(clock for clock, _ in found["with"])
    print(f"in the code that saves: {100 * share:.2f} % of a round ({len(found['with'])} rounds of each arm)")
    print(f"after the last round: {spent['end'] / options.repeats:.2f} s, once")


if __name__ == "__main__":
    main()
