"""Every method with a network that has persistent buffers of its own, besides BatchNorm's."""

import pytest
import torch
from torch import nn

from protolith.federation.guards import Guard
from protolith.federation.local_update import Workplace
from protolith.methods.registry import all_methods
from protolith.models import registry
from protolith.runs.config import complete_for, resolve

BUFFERS = ("level", "batches", "used")
OPTIONS = {
    "scaffold, a server step": {"method": "scaffold", "params": {"server_lr": 0.5}},
    "fedopt, adam": {"method": "fedopt", "params": {"optimizer": "adam"}},
    "fedopt, yogi": {"method": "fedopt", "params": {"optimizer": "yogi"}},
    "fedavg, a robust rule": {"method": "fedavg", "robust": "trimmed"},
    "scaffold, a robust rule": {"method": "scaffold", "robust": "trimmed"},
    "feddyn, a robust rule": {"method": "feddyn", "robust": "trimmed"},
}
CASES = {**{name: {"method": name} for name in sorted(all_methods()) if name != "fedcode"}, **OPTIONS}


class Levelled(nn.Module):
    """Divides its features by a running mean of them; counts batches; notes that it was used."""

    def __init__(self, classes, width):
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3, stride=4)
        self.bn = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)
        self.register_buffer("level", torch.ones(()))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))
        self.register_buffer("used", torch.tensor(False))

    def features(self, images):
        features = torch.relu(self.bn(self.conv(images))).mean(dim=(2, 3))
        if self.training:
            self.level.lerp_(features.detach().mean(), 0.1)
            self.batches += 1
            self.used.fill_(True)
        return features / self.level

    def forward(self, images):
        return self.head(self.features(images))


@pytest.fixture(scope="module")
def task():
    from protolith.data.tasks import load_task

    return load_task("mini")


@pytest.mark.parametrize("case", CASES)
def test_buffers_are_averaged_and_take_no_step(case, task, monkeypatch):
    """No upload is rejected; what clients get back is the mean of their buffers, in its type, whatever the method."""
    monkeypatch.setitem(registry._BUILDERS, "levelled", Levelled)
    values = {
        "task": "mini", "rounds": 4, "model": {"name": "levelled", "width": 4}, "device": "cpu", "workers": 0,
        "protocol": {"clients": {"pen": 1, "photo": 1, "print": 1}, "samples": 16},
        "training": {"epochs": 1, "batch": 8},
        **CASES[case],
    }  # fmt: skip
    workplace = Workplace(complete_for(resolve([values]), task), task)
    server, layers, memories = workplace.server(), workplace.layers, [{}, {}, {}]
    for round_ in range(3):
        server.begin(round_)
        uploads = []
        for client in range(3):
            message = layers.broadcast(server.broadcast(client), client)
            upload, memories[client] = workplace.update(client, round_, message, memories[client])
            assert Guard(server, layers=layers).problem(upload) is None
            uploads.append(upload)
        server.aggregate(layers.receive(uploads))
        sent = server.broadcast(0).weights
        for name in BUFFERS if server.expects("level") else ():
            of_clients = [float(upload.weights[name]) for upload in uploads]
            assert sent[name].dtype == uploads[0].weights[name].dtype
            assert min(of_clients) - 1e-6 <= float(sent[name]) <= max(of_clients) + 1e-6, name
