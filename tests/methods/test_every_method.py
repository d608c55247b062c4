"""What must hold for every method, whatever it computes."""

import json
import math
import os
import subprocess
import sys

import pytest
import torch

from protolith import records
from protolith.federation.guards import Guard
from protolith.federation.local_update import Workplace
from protolith.methods.registry import all_methods, get_method
from protolith.runs import runner
from protolith.runs.config import complete_for, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer

METHODS = sorted(all_methods())


class Crash(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


class CrashAfter(Observer):
    def __init__(self, rounds):
        self.rounds = rounds

    def round_done(self, metrics):
        if metrics.round == self.rounds:
            raise Crash


def settings(method, **more):
    """Clients that lack classes, that miss rounds, a domain with one client; three rounds."""
    return {
        "method": method,
        "task": "mini",
        "rounds": 3,
        "workers": 0,
        "model": {"width": 4},
        "training": {"epochs": 2, "batch": 16},
        "protocol": {
            "clients": {"pen": 2, "photo": 1, "print": 2},
            "samples": {"pen": 20, "photo": 9, "print": 24},
            "participation": 0.8,
        },
        **more,
    }


def result(path):
    files = {f.name: f.read_bytes() for f in path.glob("*.safetensors")}
    files |= {f.name: f.read_bytes() for f in path.glob("models/*.safetensors")}
    lines = RunDirectory.open(path).metrics()
    return files, [line.model_copy(update={"seconds": {}}) for line in lines]


@pytest.mark.parametrize("method", METHODS)
def test_a_crash_and_worker_processes_change_nothing(method, tmp_path):
    runner.start(resolve([settings(method)]), tmp_path / "whole", Observer())
    files, lines = result(tmp_path / "whole")
    assert files and len(lines) == 3
    for line in lines:
        numbers = [*line.loss.values(), *line.accuracy.values()]
        assert all(math.isfinite(value) for value in numbers), line
        assert line.rejected == () and line.loss["ce"] > 0
    with pytest.raises(Crash):
        runner.start(resolve([settings(method)]), tmp_path / "crashed", CrashAfter(2))
    runner.resume(tmp_path / "crashed", Observer(), workers=2)
    assert result(tmp_path / "crashed") == (files, lines)


@pytest.fixture(scope="module")
def task():
    from protolith.data.tasks import load_task

    return load_task("mini")


@pytest.mark.parametrize("method", METHODS)
def test_one_client_alone(method, task):
    """One client that holds one class: nothing to average, cluster or contrast with."""
    values = settings(method, protocol={"clients": {"pen": 1}, "samples": 16})
    workplace = Workplace(complete_for(resolve([values]), task), task)
    label = task.by_name["pen"].train.labels
    object.__setattr__(workplace.allocation.clients[0], "rows", torch.nonzero(label == 3).flatten()[:16])
    server, layers = workplace.server(), workplace.layers
    memory = {}
    for round_ in range(3):
        server.begin(round_)
        upload, memory = workplace.update(0, round_, layers.broadcast(server.broadcast(0), 0), memory)
        assert Guard(server, layers=layers).problem(upload) is None
        server.aggregate(layers.receive([upload]))
        assert records.is_finite(server.state()) and records.is_finite(memory)
        assert all(torch.isfinite(torch.tensor(list(upload.metrics.values()))))


@pytest.mark.parametrize("method", METHODS)
def test_an_update_is_a_pure_function(method, task):
    """The same broadcast and memory give the same upload, whatever the worker did before."""
    workplace = Workplace(complete_for(resolve([settings(method)]), task), task)
    server = workplace.server()
    memories = {}
    first = []
    for client in range(5):
        upload, memories[client] = workplace.update(client, 0, server.broadcast(client), {})
        first.append(upload)
    server.aggregate(iter(first))
    server.begin(1)
    before = records.clone(server.state())
    kept = {client: records.clone(memory) for client, memory in memories.items()}
    torch.manual_seed(0)
    once = workplace.update(2, 1, server.broadcast(2), memories[2])
    workplace.update(4, 1, server.broadcast(4), memories[4])
    torch.manual_seed(1)
    again = workplace.update(2, 1, server.broadcast(2), memories[2])
    for one, other in (
        (once[0].weights, again[0].weights),
        (once[0].knowledge, again[0].knowledge),
        (once[1], again[1]),
    ):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
    state = server.state()
    assert all(torch.equal(state[name], before[name]) for name in before)
    for client, memory in memories.items():  # what it was given is not changed either
        assert all(torch.equal(memory[name], kept[client][name]) for name in memory)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_explains_itself(method):
    from pathlib import Path

    from protolith.cli.lists import explain

    found = get_method(method)
    for field in ("title", "paper", "idea", "objective", "server_step", "traffic", "passes", "memory", "accuracy"):
        assert getattr(found, field), field
    assert all(info.description and not info.is_required() for info in found.params.model_fields.values())
    assert found.title in explain(found)
    page = (Path(__file__).parents[2] / "docs" / "methods" / f"{method}.md").read_text()
    assert len(page) > 500 and "bytes" in page.lower()


THIRD_PARTY = """
from protolith.methods import fedavg
from protolith.methods.base import Params
from protolith.methods.registry import Method

class Client(fedavg.Client):
    def loss(self, batch, out):
        terms = super().loss(batch, out)
        return {**terms, "activity": 0.01 * out.features.square().mean()}

METHOD = Method(name="lazy", title="Lazy", paper="ours", idea="small features", objective="CE + activity",
                server_step="as FedAvg", traffic="as FedAvg", params=Params, client=Client, server=fedavg.Server)
"""


def test_a_method_of_somebody_elses_package(tmp_path):
    """Installed with pip, found through its entry point, run by worker processes, without a change to ours."""
    package = tmp_path / "package"
    package.mkdir()
    (package / "lazy_method.py").write_text(THIRD_PARTY)
    (package / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        '[project]\nname = "lazy-method"\nversion = "1"\n'
        '[project.entry-points."protolith.methods"]\nlazy = "lazy_method:METHOD"\n'
        '[tool.setuptools]\npy-modules = ["lazy_method"]\n'
    )
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", str(target), str(package)], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    command = [sys.executable, "-m", "protolith"]
    listed = subprocess.run([*command, "methods"], env=environment, capture_output=True, text=True, check=True).stdout
    assert "lazy " in listed and "small features" in listed
    options = ["--method", "lazy", "--rounds", "1", "--workers", "1", "--json", "--out", str(tmp_path / "run")]
    sets = [f"--set={s}" for s in ("width=4", "epochs=1", "samples=16")]
    done = subprocess.run([*command, "run", *options, *sets], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "lazy"
    assert "activity" in RunDirectory.open(tmp_path / "run").metrics()[0].loss
