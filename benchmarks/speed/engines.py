"""What a round costs on each engine when clients have nothing to do, and how much memory its processes take.

    python -m benchmarks.speed.engines [--rounds 8] [--repeats 3]

Local worker processes, a Ray cluster on this machine and, for comparison, Flower's own simulation take turns, each in a
fresh process, with 20 clients. The last is Flower alone: a ServerApp that hands out a model and averages what comes
back, and a ClientApp that unpacks it and sends it back. The real federation on Flower is measured by
../flower_trial.py.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchmarks.speed import trivial
from benchmarks.speed.measure import Timing
from protolith.methods.averaging import RecordMean
from protolith.models import build_model
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.round import Round
from protolith.runs.runner import Observer

MODELS: dict[str, dict[str, Any]] = {
    "5 MB": {"name": "resnet10", "width": 32},
    "44 MB": {"name": "resnet18", "width": 64},
}
CLIENTS = 20
FLOWER = "Flower's simulation"


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [found for child in children for found in (int(child), *descendants(int(child)))]


def memory(pid: int) -> float:
    """A process's proportional share of memory in MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024


class Looks(Observer):
    """Looks at all processes once, after the third round."""

    def __init__(self) -> None:
        self.driver = self.others = 0.0
        self.processes = 0

    def round_done(self, done: Round) -> None:
        if done.round == 3:
            helpers = descendants(os.getpid())
            self.processes = len(helpers)
            self.driver, self.others = memory(os.getpid()), sum(map(memory, helpers))


def one_run(engine: str, model: str, rounds: int) -> dict[str, float]:
    settings = {
        "plugins": [str(Path(trivial.__file__))],
        "task": "mini",
        "method": "bench-trivial",
        "engine": engine,
        "model": MODELS[model],
        "rounds": rounds,
        "evaluate_every": 1000,
        "diagnostics": False,
        "protocol": {"clients": dict.fromkeys(("pen", "photo", "print", "street"), CLIENTS // 4), "samples": 1},
    }
    looks = Looks()
    with tempfile.TemporaryDirectory() as folder:
        run = runner.start(resolve([settings]), Path(folder) / "run", looks)
        times = [entry.seconds["train"] for entry in run.metrics()]
    return result(times, looks)


def one_simulation(model: str, rounds: int) -> dict[str, float]:
    """The same exchange in Flower's Ray simulation, as its message API has it."""
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    from flwr.clientapp import ClientApp
    from flwr.common import ArrayRecord, Message, RecordDict
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    server, client, times, looks = ServerApp(), ClientApp(), [], Looks()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import torch  # noqa: F401  (Flower looks whether it is there)

        weights = message.content["arrays"].to_torch_state_dict()
        return Message(content=RecordDict({"arrays": ArrayRecord(weights)}), reply_to=message)

    @server.main()
    def serve(grid: Any, context: Any) -> None:
        weights = build_model(classes=10, seed=0, **MODELS[model]).state_dict()
        for round_ in range(rounds):
            began = time.perf_counter()
            content = RecordDict({"arrays": ArrayRecord(weights)})
            nodes = list(grid.get_node_ids())
            mean = RecordMean()
            for reply in grid.send_and_receive([Message(content, node, "train") for node in nodes]):
                assert reply.has_content(), reply.error.reason
                mean.add(reply.content["arrays"].to_torch_state_dict(), 1.0)
            assert mean.weight == CLIENTS
            weights = mean.mean()
            times.append(time.perf_counter() - began)
            looks.round_done(Round(round=round_ + 1))

    run_simulation(server, client, CLIENTS, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})
    assert len(times) == rounds
    return result(times, looks)


def result(times: list[float], looks: Looks) -> dict[str, float]:
    """The figures of one run."""
    return {
        "first": times[0],
        "later": Timing.of(times[1:]).median,
        "driver": looks.driver,
        "others": looks.others,
        "processes": looks.processes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        engine, model = arguments.one
        run = one_simulation(model, arguments.rounds) if engine == FLOWER else one_run(engine, model, arguments.rounds)
        print(json.dumps(run))
        return
    found: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for _ in range(arguments.repeats):
        for model in MODELS:
            for engine in ("local", "ray", FLOWER):
                command = [sys.executable, "-m", "benchmarks.speed.engines", "--one", engine, model]
                command += ["--rounds", str(arguments.rounds)]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[model, engine].append(json.loads(done.stdout.splitlines()[-1]))
    print("| 20 clients, model of | engine | first round, s | later rounds, s | driver, MB | other processes, MB |")
    print("|---|---|---:|---:|---:|---:|")
    for (model, engine), runs in found.items():
        median = {key: Timing.of([run[key] for run in runs]) for key in runs[0]}
        later = f"{median['later'].median:.2f} ({median['later'].low:.2f} to {median['later'].high:.2f})"
        others = f"{median['others'].median:.0f} in {median['processes'].median:.0f}"
        first, driver = median["first"].median, median["driver"].median
        print(f"| {model} | {engine} | {first:.1f} | {later} | {driver:.0f} | {others} |")


if __name__ == "__main__":
    main()
