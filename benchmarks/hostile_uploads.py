"""Does any bad upload crash, hang or change a server, and is every one named?

    python benchmarks/hostile_uploads.py --number 200000

Every method gets its share. Real uploads of one round are spoilt in one of many ways; a bad one stands among three good
ones, goes through the same guard as in a run, and the server's state afterwards must be that of the three good ones,
byte for byte. In between each is checked alone, which is what makes the number large. Prints a line per method; the
exit code is 1 if anything was accepted, unnamed, slow or changed.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from protolith.data.domain import Task
from protolith.data.tasks import load_task
from protolith.federation.guards import Guard
from protolith.federation.local_update import Workplace, one_thread
from protolith.methods.fedavg import Server
from protolith.methods.registry import all_methods
from protolith.records import Record, Upload
from protolith.runs.config import complete_for, resolve

SLOW = 1.0  # seconds after which a check counts as hanging
SAMPLES = 24  # images of a client
AMONG_GOOD = 0.02  # share of the spoilt uploads that stand among good ones

Spoil = Callable[[Upload, random.Random], Upload | None]  # None: this method's uploads cannot be spoilt so


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=200_000)
    parser.add_argument("--methods", default="all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    names = list(all_methods()) if arguments.methods == "all" else arguments.methods.split(",")
    task, faults, done, began = load_task("mini"), 0, 0, time.monotonic()
    kinds: Counter[str] = Counter()
    with one_thread():
        for place, name in enumerate(names):
            number = arguments.number // len(names) + (place < arguments.number % len(names))
            trial = Trial(name, task, random.Random(f"{arguments.seed}-{name}"))
            trial.run(number)
            faults, done, kinds = faults + len(trial.faults), done + number, kinds + trial.kinds
            print(
                f"{name:<18} {number:>7} bad uploads of {len(trial.kinds)} kinds, {len(trial.faults)} faults, "
                f"slowest check {1000 * trial.slowest:.1f} ms, {trial.aggregated} aggregations",
                flush=True,
            )
            for fault in trial.faults[:10]:
                print(f"    {fault}")
    print(f"{done} uploads of {len(kinds)} kinds in {time.monotonic() - began:.0f} s: {faults} faults")
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    return 1 if faults else 0


class Trial:
    """One method's server and the good uploads of one round."""

    def __init__(self, method: str, task: Task, rng: random.Random) -> None:
        settings = {
            "method": method, "task": "mini", "rounds": 2, "model": {"width": 4}, "training": {"epochs": 1},
            "protocol": {"clients": {"pen": 2, "photo": 1, "print": 1}, "samples": SAMPLES},
        }  # fmt: skip
        self.place = Workplace(complete_for(resolve([settings]), task), task)
        server = self.place.server()
        self.good = [self.place.update(client, 0, server.broadcast(client), {})[0] for client in range(4)]
        self.guard = Guard(server)
        self.rng, self.faults, self.slowest, self.aggregated = rng, list[str](), 0.0, 0
        self.kinds: Counter[str] = Counter()
        self.expected: dict[int, Record] = {}  # the state that the good uploads lead to, without this client

    def run(self, number: int) -> None:
        """Try so many bad uploads, every kind in turn."""
        if problems := [problem for upload in self.good if (problem := self.guard.problem(upload))]:
            self.faults.append(f"a good upload was rejected: {problems[0]}")
        tried = 0
        while tried < number:
            for kind, spoil in KINDS.items():
                upload = self.good[self.rng.randrange(4)]
                bad = spoil(upload, self.rng)
                if bad is not None and tried < number:
                    tried += 1
                    self.kinds[kind] += 1
                    self.try_one(kind, upload.client, bad, among_good=self.rng.random() < AMONG_GOOD)

    def try_one(self, kind: str, client: int, bad: Upload, among_good: bool) -> None:
        """Check one alone, or as one of a round."""
        began = time.monotonic()
        try:
            problem = self.guard.problem(bad)
            if among_good:
                self.aggregate(kind, client, bad)
        except Exception as error:
            self.faults.append(f"{kind}: {type(error).__name__}: {error}")
            return
        seconds = time.monotonic() - began
        self.slowest = max(self.slowest, seconds)
        if seconds > SLOW:
            self.faults.append(f"{kind}: took {seconds:.1f} s")
        if not problem or len(problem) > 300 or "\n" in problem:
            self.faults.append(
                f"{kind}: was accepted" if not problem else f"{kind}: has no plain name: {problem[:300]}"
            )

    def aggregate(self, kind: str, client: int, bad: Upload) -> None:
        """A round in which one of four is bad must end as the round of the other three."""
        self.aggregated += 1
        if client not in self.expected:
            self.expected[client] = self.after([good for good in self.good if good.client != client])
        found = self.after([bad if good.client == client else good for good in self.good])
        if found.keys() != self.expected[client].keys() or any(
            not torch.equal(found[name], tensor) for name, tensor in self.expected[client].items()
        ):
            self.faults.append(f"{kind}: changed the aggregate")

    def after(self, uploads: list[Upload]) -> Record:
        """The server's state after a round of these uploads, as far as the guard lets them pass."""
        server: Server = self.place.server()
        guard = Guard(server, range(4), ())
        server.aggregate(iter([upload for upload in uploads if guard.problem(upload) is None]))
        return server.state()


def parts(upload: Upload) -> list[tuple[str, str]]:
    """All tensors of an upload, as (part, name)."""
    return [(part, name) for part in ("weights", "knowledge") for name in getattr(upload, part)]


def changed(upload: Upload, part: str, name: str, tensor: object) -> Upload:
    """The upload with another tensor in one place."""
    record = {**getattr(upload, part), name: tensor}
    return replace(upload, weights=record) if part == "weights" else replace(upload, knowledge=record)


def pick(upload: Upload, rng: random.Random, wanted: Callable[[Tensor], bool]) -> tuple[str, str, Tensor] | None:
    """Some tensor of an upload that is as wanted."""
    found = [(part, name) for part, name in parts(upload) if wanted(getattr(upload, part)[name])]
    if not found:
        return None
    part, name = rng.choice(found)
    return part, name, getattr(upload, part)[name]


def is_float(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


def with_number(value: float) -> Spoil:
    """One number of one tensor is this."""

    def spoil(upload: Upload, rng: random.Random) -> Upload | None:
        if (found := pick(upload, rng, is_float)) is None:
            return None
        part, name, tensor = found
        new = tensor.clone().flatten()
        new[rng.randrange(len(new))] = value
        return changed(upload, part, name, new.view_as(tensor))

    return spoil


def with_tensor(make: Callable[[Tensor, random.Random], object]) -> Spoil:
    """One tensor is replaced by what `make` makes of it (None where that cannot be)."""

    def spoil(upload: Upload, rng: random.Random) -> Upload | None:
        if (found := pick(upload, rng, lambda tensor: True)) is None:
            return None
        new = make(found[2], rng)
        return None if new is None else changed(upload, found[0], found[1], new)

    return spoil


def missing(upload: Upload, rng: random.Random) -> Upload | None:
    if not parts(upload):
        return None
    part, gone = rng.choice(parts(upload))
    record = {name: tensor for name, tensor in getattr(upload, part).items() if name != gone}
    return replace(upload, weights=record) if part == "weights" else replace(upload, knowledge=record)


def extra(upload: Upload, rng: random.Random) -> Upload:
    name = rng.choice(["", "x", "../../etc/passwd", "a\nb", "\x1b[31m", "w" * 10_000, "head.weight ", "🦊"])
    return changed(upload, rng.choice(["weights", "knowledge"]), name, torch.zeros(rng.randrange(3)))


def many_extra(upload: Upload, rng: random.Random) -> Upload:
    return replace(upload, weights={**upload.weights, **{f"x{i}": torch.zeros(1) for i in range(1000)}})


def empty(upload: Upload, rng: random.Random) -> Upload | None:
    if not parts(upload):
        return None
    return replace(upload, weights={}, knowledge={})


def other_type(tensor: Tensor, rng: random.Random) -> Tensor:
    types = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
    return tensor.to(rng.choice([kind for kind in types if kind != tensor.dtype]))


def other_shape(tensor: Tensor, rng: random.Random) -> Tensor:
    shapes = [tensor[None], torch.cat([tensor.flatten(), tensor.flatten(), tensor.flatten()]).repeat(2)]
    if tensor.dim() > 1 and tensor.shape[0] != tensor.shape[1] and tensor.dim() != 2:
        shapes.append(tensor.transpose(0, 1))
    return rng.choice(shapes)


def claims(make: Callable[[Upload, random.Random], object]) -> Spoil:
    def spoil(upload: Upload, rng: random.Random) -> Upload:
        return replace(upload, count=make(upload, rng))  # type: ignore[arg-type]

    return spoil


def sender(make: Callable[[random.Random], object]) -> Spoil:
    def spoil(upload: Upload, rng: random.Random) -> Upload:
        return replace(upload, client=make(rng))  # type: ignore[arg-type]

    return spoil


def metrics(make: Callable[[random.Random], dict[object, object]]) -> Spoil:
    def spoil(upload: Upload, rng: random.Random) -> Upload:
        return replace(upload, metrics={**upload.metrics, **make(rng)})  # type: ignore[arg-type]

    return spoil


def counts(make: Callable[[Tensor, random.Random], Tensor]) -> Spoil:
    """Other counts by class, where the method sends some."""

    def spoil(upload: Upload, rng: random.Random) -> Upload | None:
        if "counts" not in upload.knowledge:
            return None
        return upload.with_knowledge(counts=make(upload.knowledge["counts"].clone(), rng))

    return spoil


def one_more(by_class: Tensor, rng: random.Random) -> Tensor:
    by_class[rng.randrange(len(by_class))] += rng.choice([1, 2, 10**6, 2**62])
    return by_class


def negative(by_class: Tensor, rng: random.Random) -> Tensor:
    """One is negative, and the sum is right."""
    number = rng.choice([1, 100, 2**40])
    by_class[0] -= int(by_class[0]) + number
    by_class[1] += number
    return by_class


def overflowing(by_class: Tensor, rng: random.Random) -> Tensor:
    """Not negative, and the sum is right after it has left the range of 64 bits."""
    total = int(by_class.sum())
    by_class.fill_(0)
    by_class[:4] = 2**62
    by_class[4] = total
    return by_class


def labels(value: int) -> Spoil:
    """A class that does not exist, where the method sends classes (FedPLVM)."""

    def spoil(upload: Upload, rng: random.Random) -> Upload | None:
        if "labels" not in upload.knowledge:
            return None
        new = upload.knowledge["labels"].clone()
        new[rng.randrange(len(new))] = value
        return upload.with_knowledge(labels=new)

    return spoil


def lengths(more: int) -> Spoil:
    """Lengths that the client chooses but that disagree, are zero, or are more than it has images."""

    def spoil(upload: Upload, rng: random.Random) -> Upload | None:
        if "labels" not in upload.knowledge:
            return None
        points, classes = upload.knowledge["prototypes"], upload.knowledge["labels"]
        if more == 0:
            return upload.with_knowledge(prototypes=points[:0], labels=classes[:0])
        if more > 100:
            return upload.with_knowledge(prototypes=points[:1].repeat(more, 1), labels=classes[:1].repeat(more))
        return upload.with_knowledge(labels=torch.cat([classes, classes])[: len(classes) + more])

    return spoil


def variance(upload: Upload, rng: random.Random) -> Upload | None:
    """BatchNorm's variance cannot be negative."""
    names = [name for name in upload.weights if name.endswith("running_var")]
    if not names:
        return None
    name = rng.choice(names)
    return changed(upload, "weights", name, upload.weights[name] - 1e3)


KINDS: dict[str, Spoil] = {
    "nan": with_number(float("nan")),
    "inf": with_number(float("inf")),
    "minus inf": with_number(-float("inf")),
    "huge": with_number(3e38),
    "minus huge": with_number(-1e20),
    "all nan": with_tensor(lambda t, rng: torch.full_like(t, torch.nan) if is_float(t) else None),
    "missing name": missing,
    "extra name": extra,
    "1,000 extra names": many_extra,
    "empty": empty,
    "dtype": with_tensor(other_type),
    "shape": with_tensor(other_shape),
    "zero size": with_tensor(lambda t, rng: t.new_zeros(rng.choice([(0,), (0, 0), (1, 0), (0, *t.shape)]))),
    "enormous": with_tensor(lambda t, rng: t.new_zeros(1).expand(2 ** rng.randrange(30, 40))),
    "not a tensor": with_tensor(lambda t, rng: rng.choice([None, 1.0, "x", [1, 2], b"x"])),
    "sparse": with_tensor(lambda t, rng: t.to_sparse() if t.dim() else None),
    "negative variance": variance,
    "count too large": claims(lambda u, rng: rng.choice([SAMPLES + 1, 10**6, 2**70, 10**5000])),
    "count not positive": claims(lambda u, rng: rng.choice([0, -1, -(2**70)])),
    "count no whole number": claims(lambda u, rng: rng.choice([float("nan"), 1.5, float("inf"), "9", None, True])),
    "unknown client": sender(lambda rng: rng.choice([4, -1, 2**70, -4])),
    "client no number": sender(lambda rng: rng.choice([None, "0", 0.0, "x" * 10_000, True, (1,)])),
    "metric not finite": metrics(lambda rng: {"ce": rng.choice([float("nan"), float("inf"), -float("inf")])}),
    "metric too large": metrics(lambda rng: {"ce": rng.choice([1e300, -1e31, 10**5000])}),
    "metric no number": metrics(lambda rng: {"ce": rng.choice([None, "1", [1], {}, True, 1j])}),
    "too many metrics": metrics(lambda rng: {f"m{i}": 0.0 for i in range(1000)}),
    "metric's name": metrics(lambda rng: {rng.choice(["", "n" * 65, "n" * 10**6, None, 7, ("a",)]): 1.0}),
    "counts do not add up": counts(one_more),
    "negative count": counts(negative),
    "overflowing counts": counts(overflowing),
    "class too large": labels(10),
    "class negative": labels(-1),
    "lengths disagree": lengths(1),
    "no prototype at all": lengths(0),
    "more prototypes than images": lengths(1000),
}


if __name__ == "__main__":
    sys.exit(main())
