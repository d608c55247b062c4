"""Is the shift between the domains of `mini` real, and is the task learnable?

    python benchmarks/mini_shift.py > results/mini-shift.md

Trains one network on each domain alone and one on all of them, and tests each on every domain. What must hold: a
network that knows one domain loses at least 20 points on the others, and one that knows all has at least 85 % on each.
"""

import torch
from torch import nn

from protolith.data.domain import Split, Task
from protolith.data.tasks import load_task
from protolith.federation.local_update import local_update
from protolith.methods import fedavg
from protolith.methods.base import Context, Params, Training
from protolith.models import build_model
from protolith.models.passes import answers
from protolith.models.spec import see
from protolith.records import clone

WIDTH, EPOCHS, SEED = 16, 20, 0
CPU = torch.device("cpu")


def accuracies(task: Task, data: Split) -> list[float]:
    """Train as a client does, and test on every domain."""
    model = build_model("resnet10", len(task.classes), WIDTH, SEED).to(memory_format=torch.channels_last)
    context = Context(
        client=0, round=0, rounds=1, classes=len(task.classes), params=Params(), model=model, data=data,
        training=Training(epochs=EPOCHS, batch=32, flip=False), buffers="average", weights=clone(model.state_dict()),
        knowledge={}, memory={}, rng=torch.Generator().manual_seed(SEED), seed=SEED, run_seed=SEED, device=CPU,
    )  # fmt: skip
    local_update(fedavg.Client, context)
    tests = [domain.test for domain in task.domains]
    return [100 * correct(model, test) / len(test) for test in tests]


def correct(model: nn.Module, test: Split) -> int:
    """How many test images a network classifies rightly."""
    labels = [logits.argmax(dim=1) for logits in answers(model, test.images, lambda images: model(see(model, images)))]
    return int((torch.cat(labels) == test.labels).sum())


def main() -> None:
    task = load_task("mini")
    names = [domain.name for domain in task.domains]
    print(f"ResNet-10 of width {WIDTH}, {EPOCHS} epochs, batch 32, seed {SEED}; test accuracy in per cent.\n")
    print("Made by `python benchmarks/mini_shift.py > results/mini-shift.md`.\n")
    print(f"| trained on | {' | '.join(names)} | own − mean of the others |\n|---|{'---:|' * (len(names) + 1)}")
    for own, domain in enumerate(task.domains):
        found = accuracies(task, domain.train)
        others = [value for index, value in enumerate(found) if index != own]
        cells = " | ".join(f"{value:.1f}" for value in found)
        print(f"| {domain.name} | {cells} | {found[own] - sum(others) / len(others):.1f} |", flush=True)
    images = torch.cat([domain.train.images for domain in task.domains])
    labels = torch.cat([domain.train.labels for domain in task.domains])
    found = accuracies(task, Split(images, labels))
    print(f"| all | {' | '.join(f'{value:.1f}' for value in found)} | |")


if __name__ == "__main__":
    main()
