"""Many clients, some of which drop out and some of which send nonsense: does a run stay whole, and its memory flat?

    python benchmarks/load.py                                   2,000 clients, 20 rounds
    python benchmarks/load.py --clients 200 --rounds 5

One image a client, the real training and the real server, in worker processes. Clients drop out by the protocol's own
setting. Bad uploads are made here: the engine is wrapped, and what it hands over is spoilt for clients drawn from
(seed, round), in turn in seven ways. Expected counts are computed apart from the run. The exit code is 1 if a round is
missing, a count differs, or the server's memory grows.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from protolith.data.protocols import participants
from protolith.federation.engine import Engine, Job, Result
from protolith.records import Broadcast, Record, Upload
from protolith.runs import runner
from protolith.runs.config import RunConfig, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round
from protolith.runs.runner import Observer

DOMAINS = ("pen", "photo", "print", "street")
GROWTH = 1.05  # of the memory, from the third round to the last
SETTLED = 2  # rounds until everything that is kept from round to round is there


def spoilt(upload: Upload, way: int) -> Upload:
    """An upload that a server must not accept."""
    name = next(iter(upload.weights))
    weights, tensor = dict(upload.weights), upload.weights[name]
    ways: Sequence[Callable[[], Upload]] = (
        lambda: replace(upload, weights={**weights, name: torch.full_like(tensor, float("nan"))}),
        lambda: replace(upload, weights={**weights, name: torch.full_like(tensor, float("inf"))}),
        lambda: replace(upload, weights={**weights, name: tensor.flatten()[:-1]}),
        lambda: replace(upload, weights={**weights, name: tensor.double()}),
        lambda: replace(upload, weights={key: value for key, value in weights.items() if key != name}),
        lambda: replace(upload, weights={**weights, "extra": torch.zeros(3)}),
        lambda: replace(upload, count=upload.count + 1_000_000),
    )
    return ways[way % len(ways)]()


def bad_clients(jobs: Sequence[int], share: float, seed: int, round_: int) -> list[int]:
    """Who sends nonsense in a round."""
    return sorted(random.Random(f"bad {seed} {round_}").sample(list(jobs), round(share * len(jobs))))


class Spoiling:
    """An engine around another, which spoils some uploads on their way."""

    def __init__(self, engine: Engine, share: float, seed: int) -> None:
        self.engine, self.share, self.seed = engine, share, seed

    def train(self, jobs: Sequence[Job], broadcast: Callable[[int], Broadcast]) -> Iterator[Result]:
        bad = bad_clients([job.client for job in jobs], self.share, self.seed, jobs[0].round) if jobs else []
        for result in self.engine.train(jobs, broadcast):
            client = result.upload.client
            yield replace(result, upload=spoilt(result.upload, bad.index(client))) if client in bad else result

    def evaluate(self, weights: Record, knowledge: Record) -> dict[str, float]:
        return self.engine.evaluate(weights, knowledge)

    def close(self) -> None:
        self.engine.close()


class Memory(Observer):
    """Measures this process after every round."""

    def __init__(self) -> None:
        self.megabytes: list[float] = []
        self.began = time.monotonic()

    def round_done(self, done: Round) -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        self.megabytes.append(pages * 4096 / 1e6)
        print(
            f"round {done.round}: {done.clients} clients, {len(done.dropped)} dropped, "
            f"{len(done.rejected)} rejected, {self.megabytes[-1]:.0f} MB, {time.monotonic() - self.began:.0f} s",
            flush=True,
        )


def configuration(arguments: argparse.Namespace) -> RunConfig:
    clients = {name: arguments.clients // len(DOMAINS) for name in DOMAINS}
    return resolve(
        [
            {
                "task": "mini",
                "method": arguments.method,
                "rounds": arguments.rounds,
                "seed": arguments.seed,
                "workers": arguments.workers,
                "evaluate_every": 1000,
                "model": {"width": 4},
                "training": {"epochs": 1, "batch": 4},
                "protocol": {"clients": clients, "samples": 1, "dropout": arguments.dropout},
            }
        ]
    )


def expected(config: RunConfig, bad: float) -> list[tuple[int, int]]:
    """Clients that drop out and uploads that are rejected, by round, from the settings alone."""
    found = []
    clients = sum(config.protocol.clients.values())
    strikes = [0] * clients  # who was rejected three times in a row sits out
    for round_ in range(config.rounds):
        chosen, dropped = (
            [client for client in some if strikes[client] < config.guard.strikes]
            for some in participants(clients, config.protocol, config.seed, round_)
        )
        rejected = bad_clients(chosen, bad, config.seed, round_)
        found.append((len(dropped), len(rejected)))
        for client in chosen:
            strikes[client] = strikes[client] + 1 if client in rejected else 0
    return found


def faults(run: RunDirectory, wanted: list[tuple[int, int]], megabytes: list[float]) -> list[str]:
    """What is not as it should be."""
    counted = [(len(line.dropped), len(line.rejected)) for line in run.metrics()]
    found = []
    if len(counted) != len(wanted) or not run.summary():
        found.append(f"{len(counted)} of {len(wanted)} rounds")
    found += [
        f"round {i + 1}: {a} instead of {b}" for i, (a, b) in enumerate(zip(counted, wanted, strict=False)) if a != b
    ]
    unnamed = [event for line in run.metrics() for event in line.rejected if not event.client or not event.reason]
    if unnamed:
        found.append(f"{len(unnamed)} rejected uploads without a name or a reason")
    if len(megabytes) > SETTLED + 1 and megabytes[-1] > GROWTH * megabytes[SETTLED]:
        found.append(f"memory grew from {megabytes[SETTLED]:.0f} to {megabytes[-1]:.0f} MB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--bad", type=float, default=0.02)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=-1)
    arguments = parser.parse_args()
    config, memory, original = configuration(arguments), Memory(), runner._engine

    def spoiling(*given: Any) -> Engine:
        return Spoiling(original(*given), arguments.bad, arguments.seed)

    runner._engine = spoiling
    with tempfile.TemporaryDirectory() as folder:
        run = runner.start(config, Path(folder) / "run", memory)
        wanted = expected(run.config(), arguments.bad)
        wrong = faults(run, wanted, memory.megabytes)
        reasons = {event.reason.split("'")[-1].strip() for line in run.metrics() for event in line.rejected}
    result = {
        "clients": arguments.clients, "rounds": arguments.rounds, "method": arguments.method,
        "dropped": sum(dropped for dropped, _ in wanted), "rejected": sum(rejected for _, rejected in wanted),
        "kinds of reasons": len(reasons), "megabytes": [round(value) for value in memory.megabytes],
        "seconds": round(time.monotonic() - memory.began), "faults": wrong,
    }  # fmt: skip
    print(json.dumps(result))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
