"""A finished run's model, ready to be asked: logits and features of images."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from protolith import records
from protolith.data.augment import to_input
from protolith.data.domain import MEAN, STD, Task
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.federation.local_update import choose_device, one_thread, present_device
from protolith.methods.fedavg import load_weights
from protolith.methods.registry import Method, classify, get_method, load_plugin
from protolith.models import Network, build_model
from protolith.models.passes import answers
from protolith.records import BadRecord, Record, under_prefix
from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory
from protolith.use.surface import surface

MODEL = "model.safetensors"


@dataclass(frozen=True)
class Answers:
    """What a model says about images: logits [n, K] and features [n, d], on the CPU.

    `looks` [n, d + 13] is what familiarity is judged by (`looks_of`).
    """

    logits: Tensor
    features: Tensor
    looks: Tensor


def looks_of(inputs: Tensor, features: Tensor) -> Tensor:
    """Features [n, d], the means and the deviations of the input's channels, and the surface of the images."""
    deviation, mean = torch.std_mean(inputs, dim=(2, 3), correction=0)
    pixels = torch.stack([inputs[:, i] * STD[i] + MEAN[i] for i in range(3)], dim=1)
    return torch.cat([features, mean, deviation, surface(pixels)], dim=1)


@dataclass(frozen=True)
class Trained:
    """The global model of a run, with what its method and its run know."""

    run: RunDirectory
    config: RunConfig
    model: nn.Module
    knowledge: Record
    method: Method
    classes: tuple[str, ...]
    size: int
    name: str
    width: int
    device: torch.device

    def ask(self, images: Tensor) -> Answers:
        """Pass uint8 images [n, size, size, 3] through the model, in batches."""
        if not len(images):
            one = self.ask(torch.zeros(1, self.size, self.size, 3, dtype=torch.uint8))
            return Answers(one.logits[:0], one.features[:0], one.looks[:0])
        with one_thread():
            parts = list(answers(self.model, images, self._answer))
        names = ("logits", "features", "looks")
        return Answers(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _answer(self, images: Tensor) -> Answers:
        network, inputs = cast(Network, self.model), to_input(images, self.device)
        features = network.features(inputs)
        own_head = self.method.predict is classify
        logits = network.head(features) if own_head else self.method.predict(self.model, inputs, self._known)
        return Answers(logits.float().cpu(), features.float().cpu(), looks_of(inputs, features).float().cpu())

    @cached_property
    def _known(self) -> Record:
        return {name: tensor.to(self.device) for name, tensor in self.knowledge.items()}

    def task(self) -> Task:
        """The run's data, where they are at hand."""
        config = self.config
        if config.engine == "flower":
            raise UserError("the run's images are at its sites and not here.")
        data = Path(config.data) if config.data else None
        task = load_task(config.task, data=data, size=config.size, skip_bad=config.skip_bad)
        if task.classes != self.classes:
            raise UserError(f"task {task.name} now has other classes than the model of {self.run.path}.")
        return task


def open_network(run: RunDirectory) -> tuple[nn.Module, Record, dict[str, Any]]:
    """The global network of a finished run in evaluation mode, all that its file holds, and what that says of it."""
    path = run.path / MODEL
    for plugin in run.config().plugins:
        load_plugin(plugin)
    try:
        record, about = records.read_with_about(path)
        name, classes, width, _ = (about[key] for key in ("model", "classes", "width", "size"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: this method has no global model, or the run is not finished."
        ) from None
    except (BadRecord, KeyError):
        raise UserError(f"{path} is not a model that a run wrote.") from None
    model = build_model(name, len(classes), width, seed=0)
    load_weights(model, record)
    return model.eval(), record, about


def _device_here(trained_on: str) -> torch.device:
    """Where the model was trained, or what this machine has instead."""
    try:
        return present_device(trained_on)
    except UserError:
        return choose_device("auto")


def open_trained(run: RunDirectory) -> Trained:
    """Open the global model of a finished run."""
    config, (network, record, about) = run.config(), open_network(run)
    device = _device_here(config.device)
    model = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    method, knowledge = get_method(config.method), under_prefix("knowledge", record)
    classes, size, name, width = tuple(about["classes"]), about["size"], about["model"], about["width"]
    return Trained(run, config, model, knowledge, method, classes, size, name, width, device)
