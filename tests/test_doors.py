"""Four doors: a method, a model, a task and a measure from outside are one file each, and workers know them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from protolith import doors
from protolith.data import spec
from protolith.errors import UserError
from protolith.evaluation import measures
from protolith.methods import registry
from protolith.models import registry as models
from protolith.runs.directory import RunDirectory

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-c", "from protolith.cli.main import main; main()"]
# One file for each door; its last line is what `--plugin` needs, and what an entry point does without.
METHOD = '''
from protolith.methods import fedavg
from protolith.methods.registry import Method

class Client(fedavg.Client):
    """Learns half as much."""

    def loss(self, batch, output):
        return {name: 0.5 * term for name, term in super().loss(batch, output).items()}

METHOD = Method(name="outer-method", title="Outer", paper="None et al., 2026", idea="half", objective="half",
                server_step="mean", traffic="weights", params=fedavg.Params, client=Client, server=fedavg.Server)
'''
MODEL = """
from torch import nn
import protolith as pl

class Net(nn.Module):
    def __init__(self, classes, width):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, width), nn.Linear(width, classes)

    def features(self, images):
        return self.encoder(images.mean((2, 3))).relu()

    def forward(self, images):
        return self.head(self.features(images))

def build(classes, width):
    return Net(classes, width)
"""
TASK = """
from protolith.data.spec import TaskSpec

TASK = TaskSpec(name="outer-task", domains=("north", "south"), classes=("dark", "light"), split="by-class",
                settings={"rounds": 2, "training": {"epochs": 1, "batch": 4}, "protocol": {"name": "sites"}})
"""
MEASURE = """
import torch
import protolith as pl
from protolith.methods.base import Spec

class Light(pl.Measure):
    name, idea = "outer-measure", "how often the answer is the last class, in per cent"

    def schema(self, classes):
        return {"last": Spec((), torch.int64, least=0), "images": Spec((), torch.int64, least=0)}

    def count(self, logits, labels):
        return {"last": (logits.argmax(1) == logits.shape[1] - 1).sum(), "images": torch.tensor(len(labels))}

    def result(self, total):
        return 100.0 * int(total["last"]) / int(total["images"])

LIGHT = Light()
"""
FILES = {"outer_method": METHOD, "outer_model": MODEL, "outer_task": TASK, "outer_measure": MEASURE}
REGISTERED = {
    "outer_model": 'pl.register_model("outer-model")(build)\n',
    "outer_measure": "pl.register_measure(LIGHT)\n",
}
POINTS = """[protolith.methods]
outer-method = outer_method:METHOD
[protolith.models]
outer-model = outer_model:build
[protolith.tasks]
outer-task = outer_task:TASK
[protolith.measures]
outer-measure = outer_measure:LIGHT
"""
RUN = [
    *("run", "--method", "outer-method", "--task", "outer-task", "--data", "data", "--no-diagnostics", "--json"),
    *("--set", "model.name=outer-model", "--set", "width=4", "--set", 'measures=["outer-measure"]'),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Images of the task; the files as an installed package, and as plug-ins."""
    place = tmp_path_factory.mktemp("doors")
    shades = torch.Generator().manual_seed(0)
    for domain in ("north", "south"):
        for label, base in (("dark", 0), ("light", 120)):
            folder = place / "data" / domain / label
            folder.mkdir(parents=True)
            for number in range(10):
                pixels = base + torch.randint(0, 120, (32, 32, 3), generator=shades)
                Image.fromarray(pixels.to(torch.uint8).numpy()).save(folder / f"{number}.png")
    about = place / "installed" / "outer-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    (place / "plugins").mkdir()
    for name, text in FILES.items():
        (place / "installed" / f"{name}.py").write_text(text)
        (place / "plugins" / f"{name}.py").write_text(text + REGISTERED.get(name, ""))
    return place


def called(place, *arguments, installed=True):
    """A command in a process of its own, in which the package is installed or not."""
    paths = [str(ROOT), *([str(place / "installed")] if installed else [])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=place, env=environment, capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def alone(place):
    """The run in one process, with the package installed."""
    done = called(place, *RUN, "--workers", 0, "--out", "alone")
    assert done.returncode == 0, done.stderr
    return RunDirectory.open(place / "alone")


def assert_same(one, other):
    assert (one.path / "model.safetensors").read_bytes() == (other.path / "model.safetensors").read_bytes()
    assert one.summary().measures == other.summary().measures
    assert [line.accuracy for line in one.metrics()] == [line.accuracy for line in other.metrics()]


def test_an_installed_package_opens_all_four_doors_also_for_workers(place, alone):
    done = called(place, *RUN, "--workers", 2, "--out", "workers")
    assert done.returncode == 0, done.stderr
    assert_same(RunDirectory.open(place / "workers"), alone)
    assert 0 <= alone.summary().measures["outer-measure"].mean <= 100
    assert "outer-method" in called(place, "methods").stdout and "outer-task" in called(place, "tasks").stdout


def test_plug_in_files_do_the_same(place, alone):
    plugins = [word for name in FILES for word in ("--plugin", place / "plugins" / f"{name}.py")]
    done = called(place, *RUN, *plugins, "--workers", 2, "--out", "plugged", installed=False)
    assert done.returncode == 0, done.stderr
    assert_same(RunDirectory.open(place / "plugged"), alone)


def test_ray_knows_them_too(place, alone):
    pytest.importorskip("ray", reason="Ray is not installed (pip install 'protolith[ray]')")
    done = called(place, *RUN, "--engine", "ray", "--workers", 2, "--out", "ray")
    assert done.returncode == 0, done.stderr
    assert_same(RunDirectory.open(place / "ray"), alone)


def test_without_the_package_each_name_is_refused(place):
    for given, sentence in (
        (["--method", "outer-method"], "unknown method 'outer-method'"),
        (["--set", "model.name=outer-model"], "unknown model 'outer-model'"),
        (["--set", 'measures=["outer-measure"]'], "unknown measure 'outer-measure'"),
        (["--task", "outer-task"], "outer-task"),
    ):
        done = called(place, "run", "--workers", 0, *given, "--out", "refused", installed=False)
        assert done.returncode == 2 and sentence in done.stderr


class Point:
    """An entry point that holds an object."""

    def __init__(self, name, held):
        self.name, self.held = name, held

    def load(self):
        if isinstance(self.held, Exception):
            raise self.held
        return self.held


LOOK = {
    "methods": (registry._installed, registry.method_names, "Method"),
    "models": (models._installed, models.model_names, "model, a function"),
    "tasks": (spec._installed, spec.all_tasks, "TaskSpec"),
    "measures": (measures._installed, lambda: measures.measures_of([]), "Measure"),
}


@pytest.mark.parametrize("door", LOOK)
def test_what_does_not_fit_through_a_door_is_refused_in_a_sentence(monkeypatch, door):
    installed, look, kind = LOOK[door]
    for held, sentence in (
        (3, f"the entry point 'odd' of protolith.{door} is not a protolith {kind}"),
        (ImportError("no module"), f"the entry point 'odd' of protolith.{door} cannot be loaded: no module"),
    ):
        points = [Point("odd", held)]
        monkeypatch.setattr(doors, "entry_points", lambda group, points=points: points if group.endswith(door) else [])
        installed.cache_clear()
        with pytest.raises(UserError, match=sentence):
            look()
    installed.cache_clear()


@pytest.mark.parametrize(
    ("door", "name", "held"),
    [
        ("models", "resnet10", lambda classes, width: None),
        ("tasks", "mini", spec._ours()["mini"]),
        ("measures", "x", measures.Accuracy()),
    ],
)
def test_nobody_takes_a_name_of_ours(monkeypatch, door, name, held):
    installed, look, _ = LOOK[door]
    monkeypatch.setattr(doors, "entry_points", lambda group: [Point(name, held)] if group.endswith(door) else [])
    installed.cache_clear()
    with pytest.raises(UserError, match=f"an entry point of protolith.{door} has the name of a .* of ours"):
        look()
    installed.cache_clear()
