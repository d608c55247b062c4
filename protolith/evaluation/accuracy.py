"""Top-1 accuracy: of images, of test sets, of domains."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protolith.data.augment import to_input
from protolith.data.domain import Split
from protolith.data.protocols import TestSet

CHUNK = 512  # test images in one job; fixed, so that results do not depend on the number of workers
BATCH = 64  # small enough for the cache

Predict = Callable[[nn.Module, Tensor], Tensor]


def count_correct(model: nn.Module, predict: Predict, split: Split, device: torch.device) -> int:
    """Count the images whose most likely class is their label."""
    model.eval()
    correct = 0
    with torch.inference_mode():
        for start in range(0, len(split), BATCH):
            images = to_input(split.images[start : start + BATCH], device)
            labels = split.labels[start : start + BATCH].to(device)
            correct += int((predict(model, images).argmax(1) == labels).sum())
    return correct


@dataclass(frozen=True)
class Chunk:
    """A stretch of a test set: the unit of evaluation work."""

    test: int
    start: int
    stop: int


def chunks(tests: Sequence[TestSet]) -> list[Chunk]:
    """Cut all test sets into chunks."""
    return [
        Chunk(index, start, min(start + CHUNK, len(test.rows)))
        for index, test in enumerate(tests)
        for start in range(0, len(test.rows), CHUNK)
    ]


def domain_means(tests: Sequence[TestSet], accuracy: Mapping[str, float]) -> dict[str, float]:
    """Average the accuracies of a domain's test sets, for every domain (in per cent, as they come)."""
    by_domain: dict[str, list[float]] = {}
    for test in tests:
        if test.name in accuracy:
            by_domain.setdefault(test.domain, []).append(accuracy[test.name])
    return {domain: sum(values) / len(values) for domain, values in by_domain.items()}


def mean(accuracy: Mapping[str, float]) -> float:
    """The unweighted mean over domains."""
    return sum(accuracy.values()) / len(accuracy)


def own_and_across(
    tests: Sequence[TestSet], client_domains: Mapping[int, str], accuracy: Mapping[int, Mapping[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Summarise the clients' own models: on their own domain, and on the others'.

    Own: for every domain, the mean over the clients that live there (over all clients when none does, as for
    an unseen domain); a client with a test set of its own is tested on that one alone. Across: for every
    domain, the mean over the clients that live elsewhere.
    """
    own: dict[str, list[float]] = {}
    across: dict[str, list[float]] = {}
    inhabited = set(client_domains.values())
    for client, values in accuracy.items():
        for test in tests:
            at_home = client_domains[client] == test.domain
            if (at_home and test.owner in (None, client)) or test.domain not in inhabited:
                own.setdefault(test.domain, []).append(values[test.name])
            if not at_home:
                across.setdefault(test.domain, []).append(values[test.name])
    return (
        {domain: sum(values) / len(values) for domain, values in own.items()},
        {domain: sum(values) / len(values) for domain, values in across.items()},
    )


def worst(accuracy: Mapping[str, float]) -> tuple[str, float]:
    """The domain with the lowest accuracy, and that accuracy."""
    return min(accuracy.items(), key=lambda item: item[1])


def spread(accuracy: Mapping[str, float]) -> float:
    """How far the best domain is above the worst."""
    return max(accuracy.values()) - min(accuracy.values())


def reached(lines: Sequence[Mapping[str, Any]], target: float) -> tuple[int, int] | None:
    """After how many rounds, and bytes down and up, the mean accuracy was at least the target for the first time."""
    sent = 0
    for line in lines:
        sent += line["bytes_down"] + line["bytes_up"]
        if line.get("mean", -1.0) >= target:
            return line["round"], sent
    return None
