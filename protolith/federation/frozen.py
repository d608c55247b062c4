"""A frozen backbone's work, done once: what clients train on in the place of images."""

from pathlib import Path

from protolith.data.domain import Task
from protolith.data.sources.found import Progress
from protolith.encoding import Views, encode_task
from protolith.federation.setup import Setup
from protolith.models.backbones import open_backbone
from protolith.models.tuned import FROZEN


def trained_on(setup: Setup, task: Task, progress: Progress, cache: Path | None = None) -> Task:
    """The images of a decoded task, or what the frozen part of the network makes of them."""
    chosen = setup.model
    if not chosen.frozen:
        return task
    backbone = open_backbone(chosen.name, chosen.weights, setup.size, chosen.sha256)
    return encode_task(task, backbone, FROZEN[chosen.tune], Views(chosen.views), cache, progress)
