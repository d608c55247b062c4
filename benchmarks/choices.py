"""Try settings of Strata, and readings of papers, without looking at a test image.

On Office-Caltech10 the clients hold a part of the training images only. Here the rest of them, which nobody holds,
take the place of the test sets, with seeds that no reported table uses.

    python benchmarks/choices.py DATA OUT.jsonl [--seed 1000] [VARIANT ...]
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import other_exchanges
import torch

from protolith.data.domain import Domain, Split, Task
from protolith.data.protocols import allocate
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.federation.coordinator import Coordinator
from protolith.federation.layers import styles
from protolith.federation.local_update import Workplace, one_thread
from protolith.federation.rounds import run_round
from protolith.records import Record
from protolith.runs.config import RunConfig, complete_for, resolve

ROUNDS = 20
AVERAGED = 10  # global models whose average is tested as well
STYLES = {"training": {"style_exchange": 0.8, "style_balance": True}}
VARIANTS: dict[str, dict[str, object]] = {
    "fedavg": {"method": "fedavg"},
    "exchange .8": {"method": "strata", "params": {"balance": False}},
    "balance": {"method": "strata", "params": {"exchange": 0.0}},
    "both .8": {"method": "strata"},
    "both .5": {"method": "strata", "params": {"exchange": 0.5}},
    "both 1": {"method": "strata", "params": {"exchange": 1.0}},
    "both .8 joint": {"method": "strata", "params": {"draw": "joint"}},
    "both .8 mean": {"method": "strata", "params": {"draw": "mean"}},
    "both .8, own style": {"method": "strata"},
    "both .8 fixed": {"method": "strata", "params": {"draw": "fixed"}},
    "both .8, GroupNorm": {"method": "strata"},
    "both .8, amplitudes": {"method": "strata"},
    "both .8, feature maps": {"method": "strata", "params": {"exchange": 0.0}},
    "both .8 + GPCL": {"method": "i2pfl", "params": {"lambda_intra": 0.0}, **STYLES},
    "both .8 + APA": {"method": "i2pfl", "params": {"lambda_inter": 0.0}, **STYLES},
    "both .8 + GPCL + APA": {"method": "i2pfl", **STYLES},
    "i2pfl": {"method": "i2pfl"},
    "i2pfl, lambda_intra 90": {"method": "i2pfl", "params": {"lambda_intra": 90.0}},
    "i2pfl, not detached": {"method": "i2pfl", "params": {"detach": False}},
    "fedcode, tau .07": {"method": "fedcode", "params": {"tau": 0.07}},
    "fedcode, tau .2": {"method": "fedcode", "params": {"tau": 0.2}},
    "fedcode, tau .5": {"method": "fedcode", "params": {"tau": 0.5}},
}


def control(name: str) -> None:
    """Change what a variant that is no option of the method needs changed, for the rest of this process."""
    if name.endswith("own style"):
        styles.other_styles = lambda known: known[styles.STYLES].cpu()[int(known[styles.OWN])][None]
    if name.endswith("GroupNorm"):
        torch.nn.BatchNorm2d = lambda channels: torch.nn.GroupNorm(8, channels)
    if name.endswith("amplitudes"):
        other_exchanges.exchange_amplitudes()
    if name.endswith("feature maps"):
        other_exchanges.exchange_features()


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


def measure(name: str, data: Path, seed: int) -> dict[str, object]:
    """Train one variant; the mean of the last five rounds, and the accuracy of the last ten models' average."""
    settings = {"task": "office10", "data": str(data), "seed": seed, "rounds": ROUNDS, "workers": 0}
    control(name)
    more = {"model": {"width": 16}, "training": {"batch": 32, "epochs": 10}}
    config = resolve([{**settings, **more}, VARIANTS[name]])
    task = load_task("office10", data=data, size=config.size)
    config = complete_for(config, task)
    workplace = Workplace(config, without_test_images(task, config))
    server, engine = workplace.server(), InProcessEngine(workplace)
    lines, models = [], []
    with tempfile.TemporaryDirectory() as memory, one_thread():
        layers = workplace.new_layers()
        coordinator = Coordinator(config, workplace.allocation, server, engine, Path(memory), layers=layers)
        for _ in range(ROUNDS):
            lines.append(run_round(coordinator))
            models = [*models, server.weights][-AVERAGED:]
            print(name, lines[-1]["round"], round(lines[-1]["mean"], 1), file=sys.stderr, flush=True)
        together = engine.evaluate(average(models), server.knowledge)
    last = lines[-5:]
    domains = {domain: round(sum(line["accuracy"][domain] for line in last) / 5, 2) for domain in last[0]["accuracy"]}
    images = {domain.name: len(domain.test) for domain in workplace.task.domains}
    means = {"mean": sum(domains.values()) / len(domains), "averaged": sum(together.values()) / len(together)}
    return {
        "variant": name,
        "seed": seed,
        **{key: round(value, 2) for key, value in means.items()},
        **domains,
        "images": images,
    }


def average(models: list[Record]) -> Record:
    """The average of global models, buffers and all."""
    return {
        name: torch.stack([model[name].double() for model in models]).mean(0).to(first.dtype)
        for name, first in models[0].items()
    }


def main() -> None:
    """Measure what is not in the file yet, each variant in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("variants", nargs="*", default=list(VARIANTS))
    asked = parser.parse_intermixed_args()
    lines = map(json.loads, asked.out.read_text().splitlines()) if asked.out.exists() else []
    done = [line["variant"] for line in lines if line["seed"] == asked.seed]
    names = [name for name in asked.variants if name not in done]
    if len(names) > 1:
        for name in names:
            command = [sys.executable, __file__, asked.data, asked.out, "--seed", str(asked.seed), name]
            subprocess.run(command, check=True)
    elif names:
        line = json.dumps(measure(names[0], asked.data, asked.seed))
        with asked.out.open("a") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    main()
