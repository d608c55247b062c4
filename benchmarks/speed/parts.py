"""The measurements, one function each; every function returns lines of {what, value, unit, ...}."""

import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed import trivial
from benchmarks.speed.measure import (
    Timing,
    in_process,
    interleaved,
    matmul_gflops,
    peak_megabytes,
    seconds,
    training_operations,
)
from benchmarks.speed.plain_loop import PlainFPL, PlainLoop, round_seconds, stored_files
from benchmarks.speed.slow_losses import SlowFPL, SlowMOON
from protolith.data.domain import Task
from protolith.data.tasks import load_task
from protolith.federation.local_update import Workplace, local_update
from protolith.machine import cores
from protolith.methods.base import Context
from protolith.models import build_model
from protolith.prototypes import finch, reweight
from protolith.records import Broadcast, Record, with_prefix
from protolith.runs import runner
from protolith.runs.config import RunConfig, complete_for, resolve
from protolith.runs.defaults import Tree
from protolith.runs.runner import Observer

Line = dict[str, Any]
BFLOAT16 = "bfloat16"  # the precision of training that trades the last digits for speed


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    repeats: int
    widths: tuple[int, ...]
    rounds: int
    clients: tuple[int, ...]
    points: tuple[int, ...]
    train_seconds: float


FULL = Size(3, (64, 32, 16), 1, (20, 200, 2000), (20, 100, 1000, 10_000), 6.0)
QUICK = Size(2, (16,), 1, (20, 200), (20, 1000), 3.0)


def line(what: str, timing: Timing, unit: str, **more: Any) -> Line:
    """One measured figure."""
    return {"what": what, "value": timing.median, "low": timing.low, "high": timing.high, "unit": unit, **more}


def ratio(what: str, ours: Timing, theirs: Timing, **more: Any) -> Line:
    """How many times faster ours is."""
    best, worst = theirs.high / ours.low, theirs.low / ours.high
    return {"what": what, "value": theirs.median / ours.median, "low": worst, "high": best, "unit": "×", **more}


# (a), (b): the machine's limit, and how close training comes


def throughput(size: Size) -> Iterator[Line]:
    """Images a second in training with one single-threaded process a core, beside the matmul peak."""
    work: dict[str, Callable[[], float]] = {"peak": matmul_gflops}
    for width in size.widths:
        work[f"width {width}"] = lambda width=width: train_rate(width, size.train_seconds)  # type: ignore[misc]
    found = interleaved(work, size.repeats)
    peak = found.pop("peak")
    yield line("matmul peak, all cores", peak, "GFLOP/s")
    for name, rate in found.items():
        width = int(name.split()[1])
        gflops = training_operations(build_model("resnet10", 10, width, 0), 32) / 1e9
        yield line(f"training, {name}", rate, "images/s")
        share = Timing(*(value * gflops / peak.median for value in (rate.median, rate.low, rate.high)))
        yield line(f"training, {name}, share of peak", share, "of peak", at_least={64: 0.70, 16: 0.55}.get(width))


def train_rate(width: int, lasting: float) -> float:
    """Images a second of all cores together."""
    rates: list[float] = []

    def one() -> None:
        rates.append(in_process("parts:train_alone", width, lasting, worker=True)["rate"])

    threads = [threading.Thread(target=one) for _ in range(cores())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(rates)


def train_alone(width: int, lasting: float) -> dict[str, float]:
    """Images a second of a FedAvg client's whole local update, in this process."""
    images = 512
    config, task = loaded(
        resolve(
            [
                {
                    "task": "mini",
                    "model": {"width": width},
                    "training": {"epochs": 1, "batch": 32},
                    "protocol": {"clients": {"photo": 1}, "samples": images},
                }
            ]
        )
    )
    workplace = Workplace(config, task)
    images = len(workplace.client_data(0))
    times: list[float] = []
    while len(times) < 2 or sum(times[1:]) < lasting:
        times.append(seconds(lambda: local_update(workplace.method.client, context(workplace, {}))))
    return {"rate": images * (len(times) - 1) / sum(times[1:])}


# (c): a full round against the plain loop


def settings(data: str, **more: Any) -> RunConfig:
    """FedAvg on Office-Caltech10 where it is at hand, otherwise on the embedded task."""
    task: Tree = {"task": "office10", "data": data} if data else {"task": "mini"}
    base: Tree = {**task, "method": "fedavg", "training": {"batch": 32, "epochs": 1}}
    return resolve([base, more])


def loaded(config: RunConfig) -> tuple[RunConfig, Task]:
    """The task, and the configuration completed for it."""
    task = load_task(
        config.task, data=Path(config.data) if config.data else None, size=config.size, fit=config.model.fit
    )
    return complete_for(config, task), task


def full_round(size: Size, data: str) -> Iterator[Line]:
    """Broadcast, train, aggregate, test, checkpoint."""
    for width in (w for w in size.widths if w in (64, 16)):
        config, task = loaded(settings(data, model={"width": width}, rounds=size.rounds + 1))
        ways: dict[str, Any] = {"with decoded images": None}
        if data:
            ways["as public code reads"] = stored_files(task, data)
        work = ours(config)
        for way, files in ways.items():
            loop = PlainLoop(config, task, files)
            work[way] = lambda loop=loop: min(round_seconds(loop, size.rounds))  # type: ignore[misc]
        found = interleaved(work, size.repeats)
        yield line(f"round of FedAvg on {config.task}, width {width}", found["ours"], "s")
        for way, files in ways.items():
            yield line(f"the same in a plain loop {way}, width {width}", found[way], "s")
            target = {64: 1.5, 16: 2.5}[width] if files else None
            name = f"times faster than the plain loop {way}, width {width}"
            yield ratio(name, found["ours"], found[way], at_least=target)
            yield ratio(f"{name}, {BFLOAT16}", found[BFLOAT16], found[way], at_least=target)


def ours(config: RunConfig) -> dict[str, Callable[[], float]]:
    """Our round in full precision, and in the one that a user may choose for speed."""
    faster = resolve([config.model_dump(), {"training": {"precision": BFLOAT16}}])
    return {"ours": lambda: our_round(config), BFLOAT16: lambda: our_round(faster)}


def our_round(config: RunConfig) -> float:
    """Seconds of the fastest round after the first, in which the workers start."""
    with tempfile.TemporaryDirectory() as folder:
        run = runner.start(config, Path(folder) / "run", Observer())
        return float(min(entry.seconds["total"] for entry in run.metrics()[1:]))


# (d): FPL against loops over samples, MOON against three recorded passes


def against_loops(size: Size, data: str) -> Iterator[Line]:
    """A round of FPL and one client's work, as they are here and as public code does them."""
    config, task = loaded(settings(data, method="fpl", model={"width": 16}, rounds=size.rounds + 2))
    workplace = Workplace(config, task)
    knowledge = some_clusters(len(task.classes), 128)
    loop = PlainFPL(config, task, stored_files(task, data) if data else None)
    loop.clusters, loop.of_class = knowledge["clusters"], knowledge["cluster_labels"]
    found = interleaved({**ours(config), "plain": lambda: min(round_seconds(loop, size.rounds))}, size.repeats)
    name = "round of FPL, times faster than a plain loop over samples"
    yield ratio(name, found["ours"], found["plain"], at_least=3.0)
    yield ratio(f"{name}, {BFLOAT16}", found[BFLOAT16], found["plain"], at_least=3.0)
    clients = updates({"ours": workplace.method.client, "loops": SlowFPL}, context(workplace, knowledge))
    found = interleaved(clients, size.repeats)
    yield ratio("a client's work in FPL, times faster than with loops over samples", found["ours"], found["loops"])
    config, task = loaded(settings(data, method="moon", model={"width": 16}))
    workplace = Workplace(config, task)
    later = replace(context(workplace, {}), memory=with_prefix("previous", workplace.initial))
    found = interleaved(updates({"ours": workplace.method.client, "three": SlowMOON}, later), size.repeats)
    yield ratio("MOON, times faster than three recorded passes", found["ours"], found["three"])


def updates(clients: dict[str, type], given: Context) -> dict[str, Callable[[], float]]:
    """Ways to do one client's round."""
    return {name: lambda kind=kind: seconds(lambda: local_update(kind, given)) for name, kind in clients.items()}  # type: ignore[misc]


def some_clusters(classes: int, features: int, each: int = 3) -> Record:
    """Cluster prototypes as a server would send them."""
    rng = torch.Generator().manual_seed(0)
    return {
        "clusters": torch.rand(classes * each, features, generator=rng),
        "cluster_labels": torch.arange(classes * each) % classes,
    }


def context(workplace: Workplace, knowledge: Record) -> Context:
    """What the first client of a run is given."""
    broadcast = Broadcast(workplace.initial, knowledge)
    return workplace.context(0, 1, broadcast, {})


# (e), (f): the engine without work, and many clients


def engine(size: Size) -> Iterator[Line]:
    """Seconds a round and the server's memory when clients have nothing to do."""
    for megabytes, model, most in (
        (5, {"name": "resnet10", "width": 32}, 0.10),
        (44, {"name": "resnet18", "width": 64}, 0.60),
    ):
        found = [in_process("parts:trivial_run", 20, model) for _ in range(size.repeats)]
        timing = Timing.of([run["seconds"] for run in found])
        yield line(f"engine, 20 clients × {megabytes} MB: a round", timing, "s", at_most=most)
        writing = Timing.of([run["checkpoint"] for run in found])
        yield line(f"engine, 20 clients × {megabytes} MB: its checkpoint", writing, "s")
        memory = Timing.of([run["megabytes"] for run in found])
        yield line(f"engine, 20 clients × {megabytes} MB: server's memory", memory, "MB", at_most=400.0)


def many_clients(size: Size) -> Iterator[Line]:
    """Memory and time a client as clients grow, with one image each."""
    first: dict[str, float] = {}
    for clients in size.clients:
        found = in_process("parts:trivial_run", clients, {"name": "resnet10", "width": 8}, "fedavg")
        first = first or found
        each, memory = found["seconds"] / clients, found["megabytes"]
        yield line(f"{clients} clients: a round, for each", Timing.of([each * 1000]), "ms")
        growth = Timing.of([memory / first["megabytes"]])
        yield line(f"{clients} clients: memory beside {size.clients[0]}", growth, "×", at_most=1.2)


def trivial_run(clients: int, model: Tree, method: str = "bench-trivial") -> dict[str, float]:
    """Run rounds in this process: medians of a round's work and of its checkpoint, and the memory at its highest."""
    quarter = clients // 4
    config = resolve(
        [
            {
                "plugins": [str(Path(trivial.__file__))],
                "task": "mini",
                "method": method,
                "model": model,
                "rounds": 6,
                "evaluate_every": 100,
                "diagnostics": False,
                "training": {"epochs": 1, "batch": 4},
                "protocol": {"clients": dict.fromkeys(("pen", "photo", "print", "street"), quarter), "samples": 1},
            }
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        run = runner.start(config, Path(folder) / "run", Observer())
        spent = [entry.seconds for entry in run.metrics()[1:]]
    medians = {name: Timing.of([entry[name] for entry in spent]).median for name in ("train", "checkpoint")}
    return {"seconds": medians["train"], "checkpoint": medians["checkpoint"], "megabytes": peak_megabytes()}


# (g): the server's own work


def server_work(size: Size) -> Iterator[Line]:
    """FINCH and reweighting for one class of prototypes of many clients."""
    for clients in size.points:
        found = in_process("parts:cluster", clients)
        most = {10_000: 10.0}.get(clients)
        yield line(f"FINCH, {clients} × 512", Timing.of([found["finch"]]), "s", at_most=most)
        yield line(f"FINCH, {clients} × 512: memory", Timing.of([found["megabytes"]]), "MB", at_most=2000.0)
        yield line(f"reweighting, {clients} × 10 × 512", Timing.of([found["reweight"]]), "s")


def cluster(clients: int) -> dict[str, float]:
    """Cluster and reweight made-up prototypes in this process."""
    rng = torch.Generator().manual_seed(0)
    points = torch.randn(clients, 512, generator=rng)
    prototypes = torch.randn(clients, 10, 512, generator=rng)
    counts = torch.ones(clients, 10, dtype=torch.int64)
    clustering = seconds(lambda: finch(points))
    megabytes = peak_megabytes()
    return {
        "finch": clustering,
        "reweight": seconds(lambda: reweight(prototypes, counts)),
        "megabytes": megabytes,
    }


# (h): a start


def second_start() -> Iterator[Line]:
    """A whole run of one batch in a new process, when the task has been decoded before."""
    found = [in_process("parts:one_batch")["seconds"] for _ in range(4)]
    yield line("second start: from nothing to the end of the first batch", Timing.of(found[1:]), "s")


def one_batch() -> dict[str, float]:
    """Seconds from the start of this process to the end of a run with one batch."""
    import time

    config = resolve(
        [
            {
                "task": "mini",
                "rounds": 1,
                "workers": 0,
                "training": {"epochs": 1},
                "protocol": {"clients": {"pen": 1}, "samples": 8},
            }
        ]
    )
    with tempfile.TemporaryDirectory() as folder:
        runner.start(config, Path(folder) / "run", Observer())
    return {"seconds": time.time() - started_at()}


def started_at() -> float:
    """When this process began, by the clock."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    boot = next(
        int(entry.split()[1]) for entry in Path("/proc/stat").read_text().splitlines() if entry.startswith("btime")
    )
    return boot + ticks / 100
