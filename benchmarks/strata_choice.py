"""Choose Strata's settings without looking at a test image.

On Office-Caltech10 the clients hold a part of the training images only. Here the rest of them, which nobody holds,
take the place of the test sets, with a seed that no reported table uses.

    python benchmarks/strata_choice.py DATA OUT.jsonl [VARIANT ...]
"""

import dataclasses
import json
import sys
import tempfile
from pathlib import Path

import torch

from protolith.data.domain import Domain, Split, Task
from protolith.data.protocols import allocate
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.federation.coordinator import Coordinator
from protolith.federation.local_update import Workplace, one_thread
from protolith.runs.config import RunConfig, complete_for, resolve

SEED, ROUNDS = 1000, 20
VARIANTS: dict[str, dict[str, object]] = {
    "fedavg": {"method": "fedavg"},
    "exchange .8": {"method": "strata", "params": {"balance": False}},
    "balance": {"method": "strata", "params": {"exchange": 0.0}},
    "both .8": {"method": "strata"},
    "both .5": {"method": "strata", "params": {"exchange": 0.5}},
    "both 1": {"method": "strata", "params": {"exchange": 1.0}},
    "both .8 joint": {"method": "strata", "params": {"draw": "joint"}},
    "both .8 mean": {"method": "strata", "params": {"draw": "mean"}},
}


def without_test_images(task: Task, config: RunConfig) -> Task:
    """The task with the training images that no client holds in the place of its test images."""
    held = allocate(task, config.protocol, config.seed).clients
    domains = []
    for domain in task.domains:
        rest = torch.ones(len(domain.train), dtype=torch.bool)
        for client in held:
            if client.domain == domain.name:
                rest[client.rows] = False
        unheld = Split(domain.train.images[rest], domain.train.labels[rest])
        domains.append(Domain(domain.name, domain.train, unheld))
    return dataclasses.replace(task, domains=tuple(domains), file=None)


def measure(name: str, data: Path) -> dict[str, object]:
    """Train one variant; the mean of the last five rounds."""
    settings = {"task": "office10", "data": str(data), "seed": SEED, "rounds": ROUNDS, "workers": 0}
    more = {"model": {"width": 16}, "training": {"batch": 32, "epochs": 10}}
    config = resolve([{**settings, **more, **VARIANTS[name]}])
    task = load_task("office10", data=data, size=config.size)
    config = complete_for(config, task)
    workplace = Workplace(config, without_test_images(task, config))
    server = workplace.server()
    lines = []
    with tempfile.TemporaryDirectory() as memory, one_thread():
        coordinator = Coordinator(config, workplace.allocation, server, InProcessEngine(workplace), Path(memory))
        for _ in range(ROUNDS):
            lines.append(coordinator.run_round())
            print(name, lines[-1]["round"] + 1, round(lines[-1]["mean"], 1), file=sys.stderr, flush=True)
    last = lines[-5:]
    domains = {domain: round(sum(line["accuracy"][domain] for line in last) / 5, 2) for domain in last[0]["accuracy"]}
    images = {domain.name: len(domain.test) for domain in workplace.task.domains}
    return {"variant": name, "mean": round(sum(domains.values()) / len(domains), 2), **domains, "images": images}


def main() -> None:
    """Measure what is not in the file yet."""
    data, out, *names = sys.argv[1:]
    done = [json.loads(line)["variant"] for line in Path(out).read_text().splitlines()] if Path(out).exists() else []
    for name in names or VARIANTS:
        if name not in done:
            line = json.dumps(measure(name, Path(data)))
            with Path(out).open("a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
