"""One process of the cluster: a resident model and the task, and jobs that come as plain arrays."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from protolith.data.domain import Domain, Split, Task
from protolith.engines.messages import fault
from protolith.evaluation.accuracy import Chunk
from protolith.evaluation.measures import to_plain
from protolith.federation.local_update import Workplace
from protolith.federation.setup import Setup
from protolith.methods.registry import load_plugin
from protolith.records import Broadcast, Record, clone

Arrays = dict[str, np.ndarray[Any, Any]]
Answer = dict[str, Any]


def to_arrays(record: Mapping[str, torch.Tensor]) -> Arrays:
    """A record as arrays, which Ray keeps in shared memory."""
    return {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in record.items()}


def to_record(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Record:
    """Arrays as a record; copied, because what Ray shares must not be written to."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def task_arrays(task: Task) -> Arrays:
    """All images and labels of a task."""
    splits = {f"{d.name}/{kind}": getattr(d, kind) for d in task.domains for kind in ("train", "test")}
    return {
        f"{name}/{part}": tensor.numpy()
        for name, split in splits.items()
        for part in ("images", "labels", "colours")
        if (tensor := getattr(split, part)) is not None
    }


def task_of(name: str, classes: list[str], domains: list[str], arrays: Arrays) -> Task:
    """The task again; the images stay where they are, one copy on each machine."""

    def tensor(key: str) -> torch.Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is read only, and nobody writes to it
            return torch.from_numpy(arrays[key])

    def split(key: str) -> Split:
        colours = tensor(f"{key}/colours") if f"{key}/colours" in arrays else None
        return Split(tensor(f"{key}/images"), tensor(f"{key}/labels"), colours)

    return Task(name, tuple(classes), tuple(Domain(d, split(f"{d}/train"), split(f"{d}/test")) for d in domains))


class RayPlace:
    """Does jobs; a fault becomes an answer, so that only a lost process looks like one."""

    def __init__(self, settings: dict[str, Any], about: tuple[str, list[str], list[str]], arrays: Arrays) -> None:
        setup = Setup.model_validate(settings)
        for plugin in setup.plugins:
            load_plugin(plugin)
        self.workplace = Workplace(setup, task_of(*about, arrays))

    def ready(self) -> Answer:
        """Say that it is there."""
        return {"ok": True}

    def train(self, job: dict[str, Any], weights: Arrays, knowledge: Arrays, memory: Arrays) -> Answer:
        """One client's work of one round."""
        try:
            broadcast = Broadcast(to_record(weights), to_record(knowledge))
            upload, remembered = self.workplace.update(
                job["client"], job["round"], broadcast, to_record(memory), job["evaluate"]
            )
            model = to_arrays(clone(self.workplace.model.state_dict())) if job["model"] else {}
        except Exception as error:
            return fault(error)
        return {
            "ok": True,
            "count": upload.count,
            "metrics": upload.metrics,
            "tested": {name: to_plain(counts) for name, counts in upload.counts.items()},
            "weights": to_arrays(upload.weights),
            "knowledge": to_arrays(upload.knowledge),
            "memory": to_arrays(remembered),
            "model": model,
            "about": self.workplace.about_model(),
        }

    def evaluate(self, chunk: tuple[int, int, int], weights: Arrays, knowledge: Arrays) -> Answer:
        """Count on what the weights say of a piece of a test set."""
        try:
            counts = to_plain(self.workplace.count(to_record(weights), to_record(knowledge), Chunk(*chunk)))
        except Exception as error:
            return fault(error)
        return {"ok": True, "counts": counts}
