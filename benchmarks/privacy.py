"""What do a client's prototypes give away, with and without noise, and what does the noise cost?

Trains on `mini` with few images per class and keeps every upload, as a curious server would. Then it asks of images of
each client's domain whether they were among its training images (membership), and it looks for images whose features
are a client's prototypes (inversion). Both are also asked of the uploaded weights alone, which noise does not protect.

python benchmarks/privacy.py --noise 1,5 > results/privacy.md
"""

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from protolith.data.augment import to_input
from protolith.data.domain import MEAN, STD, Task
from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.federation.coordinator import LAST, Coordinator
from protolith.federation.hooks import Hook
from protolith.federation.local_update import Workplace
from protolith.federation.rounds import run_round
from protolith.models.saved import load_weights
from protolith.records import Record, Upload
from protolith.runs.accounting import Account
from protolith.runs.config import RunConfig, complete_for, resolve
from protolith.seeds import generator

METHOD, WIDTH, SAMPLES, CLIP = "i2pfl", 8, 120, 5.0
OUTSIDE = 24  # images of a class and domain that nobody trained on: half for reference, half as candidates
STEPS, RATE, SMOOTH = 150, 0.1, 2.0  # of the search for an image, and the weight of its total variation
DRAWS = 1000  # of the bootstrap


@dataclass
class Run:
    """A finished training as the server saw it."""

    name: str
    config: RunConfig
    place: Workplace
    uploads: list[dict[int, Upload]] = field(default_factory=list)  # by round and client
    accuracy: float = 0.0
    privacy: dict = field(default_factory=dict)  # type: ignore[type-arg]


def train(task: Task, name: str, method: str, noise: float, rounds: int) -> Run:
    """Train, and keep everything that was uploaded."""
    given = {
        "method": method, "task": "mini", "rounds": rounds, "model": {"width": WIDTH},
        "training": {"epochs": 1, "batch": 8, "lr": 0.02},
        "params": {} if method == "fedavg" else {"proto_pass": "eval_pass"},
        "privacy": {"noise": noise, "clip": CLIP if noise else 0.0},
        "protocol": {"clients": {domain.name: 1 for domain in task.domains}, "samples": SAMPLES},
    }  # fmt: skip
    config = complete_for(resolve([given]), task)
    place = Workplace(config, task)
    run = Run(name, config, place)
    server = place.server()
    account = Account(config, [client.name for client in place.allocation.clients])
    means = []
    with tempfile.TemporaryDirectory() as memory:
        engine = InProcessEngine(place)
        coordinator = Coordinator(
            config, place.allocation, server, engine, Path(memory), evaluate_every=rounds, layers=place.new_layers()
        )
        for _ in range(rounds):
            run.uploads.append({})
            metrics = run_round(coordinator, [Uploads(run)])
            run.privacy = account.after(metrics["round"] - 1).get("privacy", {})
            means += [metrics["mean"]] if "mean" in metrics else []
    run.accuracy = statistics.fmean(means[-LAST:])
    say(f"{name}: accuracy {run.accuracy:.1f}, {run.privacy}")
    return run


class Uploads(Hook):
    """Keeps what is sent."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def sent(self, round_: int, upload: Upload) -> None:
        self.run.uploads[round_][upload.client] = upload


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def look(run: Run, weights: Record, images: Tensor) -> tuple[Tensor, Tensor]:
    """Features and logits of images by a client's uploaded network."""
    load_weights(run.place.model, weights)
    run.place.model.eval()
    with torch.inference_mode():
        parts = [run.place.model.features(to_input(part, run.place.device)) for part in images.split(128)]
        features = torch.cat(parts)
        return features.double(), run.place.model.head(features).double()


@dataclass
class Candidates:
    """Images of one client's domain: its own, some of nobody's for reference, and as many others of nobody's."""

    images: Tensor
    labels: Tensor
    kind: Tensor  # 0 own, 1 reference, 2 other

    @classmethod
    def of(cls, run: Run, client: int) -> "Candidates":
        spec = run.place.allocation.clients[client]
        train_part = run.place.task.by_name[spec.domain].train
        free = torch.ones(len(train_part), dtype=torch.bool)
        free[spec.rows] = False
        order = torch.randperm(len(train_part), generator=generator(0, "candidates", client))
        rows, kinds = [spec.rows], [torch.zeros(len(spec.rows))]
        for label in range(len(run.place.task.classes)):
            found = order[free[order] & (train_part.labels[order] == label)][:OUTSIDE]
            rows.append(found)
            kinds.append(1 + (torch.arange(len(found)) % 2))
        chosen = torch.cat(rows)
        return cls(train_part.images[chosen], train_part.labels[chosen], torch.cat(kinds).long())


def tracing(features: Tensor, prototypes: Tensor, counts: Tensor, who: Candidates) -> Tensor:
    """How far each image's feature and its class's prototype lean to the same side of what the domain is like.

    (f − μ)ᵀ Σ⁻¹ (p − μ), μ and Σ from the reference images; in units of the reference images' own scores.
    """
    reference = who.kind == 1
    centres = torch.stack([features[reference & (who.labels == k)].mean(0) for k in range(len(counts))])
    apart = features - centres[who.labels]
    spread = apart[reference].T @ apart[reference] / int(reference.sum())
    spread += 0.1 * spread.diagonal().mean() * torch.eye(len(spread), dtype=spread.dtype)
    lean = torch.linalg.solve(spread, (prototypes.double() - centres).T).T
    raw = (apart * lean[who.labels]).sum(1) * (counts[who.labels] > 0)
    found = torch.zeros_like(raw)
    for k in range(len(counts)):
        group, known = who.labels == k, reference & (who.labels == k)
        found[group] = (raw[group] - raw[known].mean()) / raw[known].std().clamp_min(1e-9)
    return found


def auc(inside: Tensor, outside: Tensor) -> float:
    """The probability that an image of the client scores above another one; ties count half."""
    pairs = inside[:, None] - outside[None, :]
    return float(((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean())


def groups(scores: Tensor, who: Candidates) -> list[float]:
    """AUC within each class."""
    found = []
    for k in who.labels.unique().tolist():
        inside, outside = (scores[(who.labels == k) & (who.kind == kind)] for kind in (0, 2))
        if len(inside) and len(outside):
            found.append(auc(inside, outside))
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean over the groups, and the middle 95 per cent of its bootstrap."""
    held, rng = torch.tensor(values, dtype=torch.float64), generator(0, "bootstrap")
    means = held[torch.randint(len(held), (DRAWS, len(held)), generator=rng)].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return float(held.mean()), low, high


def membership(run: Run) -> dict[str, tuple[float, float, float]]:
    """AUC by prototypes (last round; all rounds together) and by the weights' loss alone."""
    found: dict[str, list[float]] = {"last": [], "all": [], "weights": []}
    for client in range(len(run.place.allocation.clients)):
        who = Candidates.of(run, client)
        total = torch.zeros(len(who.labels), dtype=torch.float64)
        for uploads in run.uploads if run.config.method == METHOD else run.uploads[-1:]:
            upload = uploads[client]
            features, logits = look(run, upload.weights, who.images)
            if "prototypes" in upload.knowledge:
                last = tracing(features, upload.knowledge["prototypes"], upload.knowledge["counts"], who)
                total += last
        found["weights"] += groups(-F.cross_entropy(logits, who.labels, reduction="none"), who)
        if "prototypes" in upload.knowledge:
            found["last"] += groups(last, who)
            found["all"] += groups(total, who)
    say(f"{run.name}: membership done")
    return {name: interval(values) for name, values in found.items() if values}


def mean_images(run: Run) -> Tensor:
    """The mean image of each client and class [M, K, 3, h, w], each image less its mean, of length one."""
    means = []
    for client in range(len(run.place.allocation.clients)):
        data = run.place.client_data(client)
        pixels = data.images.permute(0, 3, 1, 2).double() / 255
        means.append(torch.stack([pixels[data.labels == k].mean(0) for k in range(len(run.place.task.classes))]))
    return directions(torch.stack(means))


def directions(images: Tensor) -> Tensor:
    flat = images.double().flatten(-3)
    flat = flat - flat.mean(-1, keepdim=True)
    return torch.nan_to_num(flat / flat.norm(dim=-1, keepdim=True))


def search(run: Run, upload: Upload, by_prototype: bool) -> Tensor:
    """Images [K, 3, h, w] whose features are the client's prototypes, or that its network takes for the classes."""
    model, classes = run.place.model, len(run.place.task.classes)
    load_weights(model, upload.weights)
    model.eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    raw = torch.zeros(classes, 3, run.config.size, run.config.size, requires_grad=True)
    optimizer = torch.optim.Adam([raw], lr=RATE)
    for _ in range(STEPS):
        shown = torch.sigmoid(raw)
        features = model.features((shown - mean) / std)
        if by_prototype:
            wanted = upload.knowledge["prototypes"]
            scale = wanted.square().sum(1).clamp_min(1e-6)
            loss = ((features - wanted).square().sum(1) / scale).sum()
        else:
            loss = F.cross_entropy(model.head(features), torch.arange(classes), reduction="sum")
        steps = (shown.diff(dim=2).abs().mean((1, 2, 3)) + shown.diff(dim=3).abs().mean((1, 2, 3))).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss + SMOOTH * steps)
        optimizer.step()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return torch.sigmoid(raw).detach()


def inversion(run: Run, by_prototype: bool) -> dict[str, float]:
    """What the found images have of the client's mean images: cosine, and whose they are most like."""
    means = mean_images(run)
    cosine, right_class, right_client, count = 0.0, 0, 0, 0
    for client, upload in sorted(run.uploads[-1].items()):
        found = directions(search(run, upload, by_prototype))
        sent = upload.knowledge["counts"] > 0 if by_prototype else torch.ones(len(found), dtype=torch.bool)
        for k in sent.nonzero().flatten().tolist():
            cosine += float(found[k] @ means[client, k])
            right_class += int((means[client] @ found[k]).argmax()) == k
            right_client += int((means[:, k] @ found[k]).argmax()) == client
            count += 1
    say(f"{run.name}: inversion done")
    share = {"cosine": cosine, "class": 100.0 * right_class, "client": 100.0 * right_client}
    return {name: value / count for name, value in share.items()} | {"count": count}


def clipped_share(run: Run) -> float:
    """Share of the clients' features that are longer than the bound, in the last round."""
    longer, count = 0, 0
    for client, upload in run.uploads[-1].items():
        lengths = look(run, upload.weights, run.place.client_data(client).images)[0].norm(dim=1)
        longer, count = longer + int((lengths > CLIP).sum()), count + len(lengths)
    return 100.0 * longer / count


def row(run: Run) -> list[str]:
    """A line of each of the two tables."""
    found = membership(run)
    cells = [f"{found[key][0]:.3f} ({found[key][1]:.3f} to {found[key][2]:.3f})" if key in found else "–" for key in ("last", "all", "weights")]  # fmt: skip  # noqa: E501
    spent = f"{run.privacy['epsilon']:.1f} ({run.privacy['epsilon_replace']:.1f})" if run.privacy else "–"
    first = f"| {run.name} | {spent} | {run.accuracy:.1f} | {' | '.join(cells)} |"
    lines = [first]
    for what, by_prototype in (("prototypes", True), ("weights", False)):
        if by_prototype and "last" not in found:
            continue
        seen = inversion(run, by_prototype)
        lines.append(f"| {run.name}, {what} | {seen['cosine']:.3f} | {seen['class']:.0f} | {seen['client']:.0f} | {seen['count']:.0f} |")  # fmt: skip  # noqa: E501
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", default="1,5")
    parser.add_argument("--rounds", type=int, default=50)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task, plans = load_task("mini"), [(f"{METHOD}, no noise", METHOD, 0.0)]
    plans += [(f"{METHOD}, noise {level}", METHOD, float(level)) for level in given.noise.split(",")]
    plans.append(("fedavg, no prototypes", "fedavg", 0.0))
    tables: list[list[str]] = []
    share = 0.0
    for name, method, noise in plans:
        run = train(task, name, method, noise, given.rounds)
        share = clipped_share(run) if method == METHOD and not noise else share
        tables.append(row(run))
    print(f"`python benchmarks/privacy.py --noise {given.noise} --rounds {given.rounds}`\n")
    print(f"mini, one client of {SAMPLES} images in each domain, {given.rounds} rounds of 1 epoch, resnet10 of width {WIDTH}, seed 0; clip {CLIP:g}, which {share:.0f} % of the features exceed in the last round without noise.\n")  # fmt: skip  # noqa: E501
    print("| run | ε, δ = 1e-5 (replace) | accuracy | membership AUC: prototypes, last round | prototypes, all rounds | weights, last round |")  # fmt: skip  # noqa: E501
    print("|---|---|---|---|---|---|\n" + "\n".join(lines[0] for lines in tables) + "\n")
    print("| inversion of | cosine with the client's mean image | class found, % (chance 10) | client found, % (chance 25) | images |")  # fmt: skip  # noqa: E501
    print("|---|---|---|---|---|\n" + "\n".join(line for lines in tables for line in lines[1:]))


if __name__ == "__main__":
    main()
