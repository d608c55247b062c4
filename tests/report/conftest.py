"""Runs that were never run: directories with everything that a report reads, written in a moment."""

import pytest
import torch

from protolith import records
from protolith.data.protocols import Allocation, Client
from protolith.data.tasks import load_task
from protolith.methods.base import Roster
from protolith.methods.registry import get_method
from protolith.records import Upload
from protolith.runs.config import resolve
from protolith.runs.diagnostics import FOLDER, TESTS, PrototypeLog
from protolith.runs.directory import RunDirectory, versions

CLASSES = ("cat", "dog", "owl")
DOMAINS = ("pen", "photo")
CLIENTS = ("pen-1", "pen-2", "photo-1")
WIDTH = 6


def write_tests(run, classes=CLASSES, domains=DOMAINS, each=12, seed=0):
    """Predictions, features and thumbnails of some images: every third prediction is wrong."""
    rng = torch.Generator().manual_seed(seed)
    n = each * len(domains)
    label = torch.arange(n) % len(classes)
    wrong = torch.arange(n) % 3 == 1
    centres = 4 * torch.randn(len(classes), WIDTH, generator=rng)
    record = {
        "label": label.short(),
        "predicted": torch.where(wrong, (label + 1) % len(classes), label).short(),
        "confidence": torch.linspace(0.5, 1.0, n).half(),
        "domain": torch.arange(len(domains)).repeat_interleave(each).short(),
        "row": torch.arange(n).int(),
        "sampled": torch.arange(n),
        "features": (centres[label] + torch.randn(n, WIDTH, generator=rng)).half(),
        "shown": torch.arange(n),
        "thumbnails": torch.randint(0, 255, (n, 8, 8, 3), dtype=torch.uint8, generator=rng),
    }
    about = {
        "domains": list(domains),
        "classes": list(classes),
        "of": "the global model",
        "features_of": "the global model",
        "images": n,
    }
    (run.path / FOLDER).mkdir(exist_ok=True)
    records.write(run.path / FOLDER / TESTS, record, about=about)


def write_prototypes(run, config, rounds, classes=CLASSES, clients=CLIENTS, domains=("pen", "pen", "photo")):
    """Prototypes of three clients: those of a domain are alike."""
    nobody = torch.zeros(0, dtype=torch.int64)
    lives = zip(clients, domains, strict=True)
    allocation = Allocation(tuple(Client(i, name, domain, nobody) for i, (name, domain) in enumerate(lives)), ())
    roster = Roster((10,) * len(clients), len(classes), WIDTH, rounds)
    method = get_method(config.method)
    server = method.server(method.params(**config.params), {"w": torch.zeros(1)}, roster)
    log = PrototypeLog(run.path / FOLDER, allocation, classes, roster)
    for round_ in range(rounds):
        uploads = []
        for client, domain in enumerate(domains):
            rng = torch.Generator().manual_seed(100 * round_ + len(domain))
            vectors = torch.rand(len(classes), WIDTH, generator=rng) + 0.01 * client
            known = {"prototypes": vectors, "counts": torch.tensor([5] * len(classes))}
            if config.method == "fedcode":
                known["style"] = vectors[0]
            uploads.append(Upload(client, 10, {"w": torch.ones(1)}, known))
            log.sent(round_, uploads[-1])
        server.aggregate(uploads)
        log.write(round_, server.knowledge, server.shown())


@pytest.fixture
def make_run(tmp_path):
    """Write the directory of a run: `rounds` done of `of`, finished or not, with diagnostics or without."""
    load_task("mini")

    def make(name, method="fedavg", seed=0, rounds=3, finished=True, diagnostics=True, more=None, **names):
        settings = {"method": method, "seed": seed, "rounds": rounds if finished else rounds + 2, "model": {"width": 4}}
        config = resolve([settings, {"diagnostics": diagnostics, "workers": 0}, more or {}])
        run = RunDirectory.create(tmp_path / name, config)
        domains = names.get("domains", DOMAINS)
        for round_ in range(rounds):
            accuracy = {domain: 20.0 + 5 * place + 7 * round_ + seed for place, domain in enumerate(domains)}
            run.append_metrics(line(round_, accuracy))
        if finished:
            run.write_summary(summary(run, config, accuracy))
        if diagnostics and finished:
            write_tests(run, names.get("classes", CLASSES), domains)
        if diagnostics and method != "fedavg" and rounds:
            write_prototypes(run, config, rounds, names.get("classes", CLASSES), names.get("clients", CLIENTS))
        return run

    return make


@pytest.fixture
def metrics_line():
    """Make a round's line of metrics."""
    return line


def line(round_, accuracy):
    """A round's line of metrics."""
    return {
        "round": round_ + 1,
        "accuracy": accuracy,
        "mean": sum(accuracy.values()) / len(accuracy),
        "loss": {"ce": 1.0},
        "bytes_down": 2_000_000,
        "bytes_up": 1_000_000,
        "clients": 3,
        "images": 30,
        "dropped": [],
        "rejected": [],
        "seconds": {"train": 1.0, "evaluate": 0.5, "checkpoint": 0.1, "total": 1.6},
    }


def summary(run, config, accuracy):
    """A summary as a run writes it."""
    lines = run.metrics()
    return {
        "method": config.method,
        "task": config.task,
        "protocol": config.protocol.name,
        "seed": config.seed,
        "rounds": config.rounds,
        "rule": f"mean of the last {len(lines)} rounds",
        "accuracy_of": "the global model",
        "accuracy": accuracy,
        "mean": sum(accuracy.values()) / len(accuracy),
        "notes": [],
        "bytes_down": 1,
        "bytes_up": 1,
        "rejected": 0,
        "seconds": 5.0,
        "versions": versions(),
    }
