"""Does familiarity tell images that are unlike the sites' from images of the sites?

Trains on three domains of PACS and asks for test photographs against sketches and noise; then on Office-Caltech10
against noise, house numbers and handwritten digits.

python benchmarks/familiarity.py DATA [rounds] [width]
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import protolith as pl
from protolith.data.protocols import Protocol
from protolith.data.reading import read_found
from protolith.data.sources.found import silent
from protolith.data.spec import all_tasks
from protolith.data.tasks import in_folder
from protolith.use.familiarity import FALSE_ALARMS, Familiarity
from protolith.use.predict import Predictor

SPLITS = 200


def auroc(familiar: Tensor, strange: Tensor) -> float:
    """The probability that a strange image has a larger distance than a familiar one; ties count half."""
    pairs = strange[:, None] - familiar[None, :]
    return float(((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean())


def noise(count: int, size: int) -> Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=rng)


def digits(data: Path, domain: str, count: int = 400) -> Tensor:
    found = in_folder(data, "digits", domain)
    assert found is not None
    return read_found(found, all_tasks()["digits"].classes, 32, "given", silent).test.images[:count]


def measure(data: Path, task_name: str, unseen: str, strange: dict[str, Tensor], rounds: int, width: int) -> None:
    protocol = Protocol(name="unseen", unseen=unseen, samples=1.0).model_dump()
    with tempfile.TemporaryDirectory() as place:
        run = pl.fit(
            task=task_name, data=str(data), protocol=protocol, rounds=rounds, model={"width": width},
            training={"epochs": 2, "batch": 32}, out=Path(place) / "run", evaluate_every=rounds,
        )  # fmt: skip
        predictor = Predictor(run)
    judge = predictor.familiarity
    assert judge is not None
    task = pl.load_task(task_name, data=data)
    strange = {**({"sketch": task.by_name["sketch"].test.images} if unseen == "sketch" else {}), **strange}
    print(f"\n{task_name}: fedavg, {rounds} rounds of 2 epochs, width {width}, trained on {', '.join(judge.sites)}")
    known = {}
    for name in judge.sites:
        test = task.by_name[name].test
        answers = predictor.trained.ask(test.images)
        known[name] = judge.distances(answers.looks)
        accuracy = 100 * float((answers.logits.argmax(1) == test.labels).double().mean())
        print(f"accuracy on {name}: {accuracy:.1f} %")
    everything = torch.cat(list(known.values()))
    for name, images in strange.items():
        found = judge.distances(predictor.trained.ask(images).looks)
        flagged = 100 * float((judge.of_distances(found) <= FALSE_ALARMS).double().mean())
        photo = f"photo {auroc(known['photo'], found):.3f}, " if "photo" in known else ""
        print(f"AUROC against {name}: {photo}all sites {auroc(everything, found):.3f}; flagged: {flagged:.1f} %")
    print(
        f"false alarms wanted {100 * FALSE_ALARMS:.1f} %, on the {len(judge.control)} held-out images that took no "
        f"part in the calibration with {len(judge.calibration)} others: {100 * judge.measured():.1f} %"
    )
    rates = 100 * torch.tensor([split_anew(judge, seed).measured() for seed in range(SPLITS)])
    print(f"the same with {SPLITS} other random halves: {rates.mean():.1f} ± {rates.std():.1f} %", flush=True)


def split_anew(judge: Familiarity, seed: int) -> Familiarity:
    """The same judge with other held-out images in its calibration."""
    held_out = torch.cat([judge.calibration, judge.control])
    held_out = held_out[torch.randperm(len(held_out), generator=torch.Generator().manual_seed(seed))]
    calibration, control = held_out.tensor_split([len(judge.calibration)])
    return replace(judge, calibration=calibration.sort().values, control=control)


def main(data: Path, rounds: int = 5, width: int = 8) -> None:
    measure(data, "pacs", "sketch", {"noise": noise(400, 32)}, rounds, width)
    others = {"noise": noise(400, 32), "svhn": digits(data, "svhn"), "mnist": digits(data, "mnist")}
    measure(data, "office10", "dslr", others, rounds, width)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:4]))
