"""A finished run's model, ready to be asked: logits and features of images."""

from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from protolith.data.domain import Task
from protolith.data.sources.found import silent
from protolith.errors import UserError
from protolith.federation.frozen import trained_on
from protolith.federation.local_update import choose_device, one_thread, present_device
from protolith.methods.registry import Method, classify
from protolith.models import Network
from protolith.models.passes import BATCH, answers
from protolith.models.saved import Saved
from protolith.models.spec import InputSpec, see
from protolith.models.tuned import Above
from protolith.records import Record
from protolith.runs.config import RunConfig
from protolith.runs.run import Run
from protolith.use.surface import surface


@dataclass(frozen=True)
class Answers:
    """What a model says about images: logits [n, K] and features [n, d], on the CPU.

    `looks` [n, d + 13] is what familiarity is judged by (`looks_of`).
    """

    logits: Tensor
    features: Tensor
    looks: Tensor


def looks_of(inputs: Tensor, features: Tensor, spec: InputSpec) -> Tensor:
    """Features [n, d], the means and the deviations of the input's channels, and the surface of the images."""
    deviation, mean = torch.std_mean(inputs, dim=(2, 3), correction=0)
    pixels = torch.stack([inputs[:, i] * spec.std[i] + spec.mean[i] for i in range(3)], dim=1)
    return torch.cat([features, mean, deviation, surface(pixels)], dim=1)


@dataclass(frozen=True)
class Trained:
    """The global model of a run, with what its method and its run know."""

    run: Run
    saved: Saved
    device: torch.device

    @property
    def config(self) -> RunConfig:
        """The run's configuration."""
        return self.run.config

    @property
    def method(self) -> Method:
        """The method that trained it."""
        return self.run.method

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.saved.model

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of its classes."""
        return self.saved.classes

    @property
    def size(self) -> int:
        """Height and width of its input."""
        return self.saved.spec.size

    def encoded(self, task: Task) -> Task | None:
        """What the frozen backbone made of the run's images, which is kept; None where all of the network is passed."""
        if self.config.model.tune != "head":
            return None
        return trained_on(self.config, task, silent)

    def ask(self, images: Tensor, encoded: Tensor | None = None) -> Answers:
        """Pass uint8 images [n, size, size, 3] through the model, in batches; or what its backbone made of them."""
        if not len(images):
            one = self.ask(torch.zeros(1, self.size, self.size, 3, dtype=torch.uint8))
            return Answers(one.logits[:0], one.features[:0], one.looks[:0])
        known = iter(() if encoded is None else torch.split(encoded, BATCH))
        with one_thread():
            parts = list(answers(self.model, images, lambda batch: self._answer(batch, next(known, None))))
        names = ("logits", "features", "looks")
        return Answers(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def _answer(self, images: Tensor, encoded: Tensor | None) -> Answers:
        network, inputs = cast(Network, self.model), see(self.model, images)
        if encoded is None:
            features = network.features(inputs)
        else:
            features = cast(Above, self.model).above(see(self.model, encoded))
        own_head = self.method.predict is classify
        logits = network.head(features) if own_head else self.method.predict(self.model, inputs, self._known)
        return Answers(
            logits.float().cpu(), features.float().cpu(), looks_of(inputs, features, self.saved.spec).float().cpu()
        )

    @cached_property
    def _known(self) -> Record:
        return {name: tensor.to(self.device) for name, tensor in self.saved.knowledge.items()}

    def task(self) -> Task:
        """The run's data, where they are at hand."""
        task = self.run.task()
        if task.classes != self.classes:
            raise UserError(f"task {task.name} now has other classes than the model of {self.run.path}.")
        return task


def _device_here(trained_on: str) -> torch.device:
    """Where the model was trained, or what this machine has instead."""
    try:
        return present_device(trained_on)
    except UserError:
        return choose_device("auto")


def open_trained(run: Run) -> Trained:
    """Open the global model of a finished run."""
    held, device = run.saved_model(), _device_here(run.config.device)
    held.model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return Trained(run, held, device)
