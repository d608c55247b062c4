"""Settings that suit images of one's own. They follow from the data alone, so that a sweep finds its runs again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from protolith.data.own import divided
from protolith.data.sources.decode import extents
from protolith.data.sources.inventory import Inventory, Row
from protolith.models.backbones import input_of, is_backbone
from protolith.models.packaged import weights_of
from protolith.runs.defaults import TUNED, Tree

METHOD = "strata"  # what gains most over FedAvg where nothing is known of the images (docs/results.md)
BACKBONE = "efficientnet-lite0"  # its head alone is trained: more accurate in a minute than anything else in an hour
PHOTOGRAPH = 64  # pixels of the median image's shorter side; below, an ImageNet network sees blurs
SCRATCH = "resnet10"
SIZES = (32, 48, 64, 96, 128)
VALUES = {"size": SIZES, "width": (8, 16, 32, 64), "epochs": (1, 2, 3, 4, 5), "rounds": (10, 15, 20, 30, 50, 70)}
# What is made smaller, and how far, until a run fits: below 64 pixels photographs lose what they show.
GIVES_WAY = (
    ("width", 16), ("size", 64), ("rounds", 20), ("epochs", 1), ("rounds", 10), ("size", 32), ("width", 8),
)  # fmt: skip
BUDGET = 3600.0  # seconds that a suggested run may take on two nominal cores
CORES = 2
NOMINAL_TEST = 0.28  # of the time of training
LEAST_STEPS = 2_000  # of SGD that a site should make in a run; after 1,900 on photographs its loss still falls
SAMPLED, SAMPLED_IN_ALL = 200, 10_000  # files of a site, and of all, whose headers are read


@dataclass(frozen=True)
class Amounts:
    """What the settings depend on: training images by site, test images, the median image's shorter side, classes."""

    train: Sequence[int]
    test: int
    side: int
    classes: int


@dataclass(frozen=True)
class Suggestion:
    """Settings for a first run. A pretrained backbone brings its own width."""

    method: str
    size: int
    width: int
    batch: int
    rounds: int
    epochs: int
    model: str = SCRATCH

    @property
    def pretrained(self) -> bool:
        """Whether the head of a pretrained backbone is what is trained."""
        return self.model != SCRATCH

    def settings(self) -> Tree:
        """The settings as a layer that lies under what the user typed."""
        if self.pretrained:  # the rest is as runs on a backbone are
            return {"method": self.method, "model": {"name": self.model}}
        return {
            "method": self.method,
            "size": self.size,
            "rounds": self.rounds,
            "model": {"width": self.width},
            "training": {"batch": self.batch, "epochs": self.epochs},
        }

    def words(self, without: Sequence[str] = ()) -> str:
        """The settings in words, without those that are named."""
        said = {
            "method": self.method,
            "model": f"the head of a pretrained {self.model}" * self.pretrained,
            "size": f"{self.size} pixels",
            "width": f"width {self.width}" * (not self.pretrained),
            "batch": f"batch {self.batch}",
            "rounds": f"{self.rounds} rounds" + f" of {self.epochs} epochs" * ("epochs" not in without),
            "epochs": f"{self.epochs} epochs" * ("rounds" in without),
        }
        return ", ".join(words for name, words in said.items() if words and name not in without)


def amounts_of(found: Inventory) -> Amounts:
    """Count the images as they would be divided, and read the headers of some files of each site."""
    parts = [divided(found, site) for site in found.domains]
    most = max(1, min(SAMPLED, SAMPLED_IN_ALL // len(parts)))
    files = [row.picture for site in found.domains for row in _evenly(found.of(site), most)]
    sides = [min(extent) for extent in extents(files)]
    side = median_low(sides) if sides else SIZES[0]
    return Amounts([train for train, _ in parts], sum(test for _, test in parts), side, len(found.classes))


def _evenly(rows: Sequence[Row], most: int) -> Sequence[Row]:
    return rows[:: max(1, -(-len(rows) // most))]


def suggest(amounts: Amounts, budget: float = BUDGET, model: str | None = None) -> Suggestion:
    """A pretrained network for photographs, where its weights are here; else what the data deserve and time allows."""
    if model is None and amounts.side >= PHOTOGRAPH and weights_of(BACKBONE)[1]:
        model = BACKBONE
    if model is None or not is_backbone(model):
        return _from_scratch(amounts, budget)
    training = TUNED["head"]["training"]
    size, rounds = input_of(model).size, TUNED["head"]["rounds"]
    return Suggestion(METHOD, size, 0, training["batch"], rounds, training["epochs"], model)


def _from_scratch(amounts: Amounts, budget: float) -> Suggestion:
    found = _deserved(amounts)
    for smaller in _ever_smaller(found):
        if nominal_seconds(found, amounts) <= budget:
            break
        found = smaller
    return found


def _deserved(amounts: Amounts) -> Suggestion:
    """What the data deserve, whatever it takes."""
    total, smallest = sum(amounts.train), min(amounts.train)
    size = max(size for size in SIZES if size <= max(amounts.side, SIZES[0]))
    width = 16 if total < 5_000 else 32 if total < 50_000 else 64
    batch = 16 if smallest < 2_000 else 32 if smallest < 20_000 else 64
    epochs = 5 if smallest < 5_000 else 2
    steps = epochs * max(1, smallest // batch)  # of the site with the fewest images, in a round
    rounds = min(100, max(20, -(-LEAST_STEPS // steps)))
    return Suggestion(METHOD, size, width, batch, rounds, epochs)


def _ever_smaller(found: Suggestion) -> Iterator[Suggestion]:
    """Give way step by step."""
    for name, least in GIVES_WAY:
        for value in reversed(VALUES[name]):
            if least <= value < getattr(found, name):
                found = replace(found, **{name: value})  # type: ignore[arg-type]
                yield found


def nominal_seconds(found: Suggestion, amounts: Amounts) -> float:
    """What a run would take on two nominal cores, whatever machine this is."""
    trained, tested = busiest(found, amounts, CORES)
    each = nominal_per_image(found.size, found.width)
    return found.rounds * each * (trained + NOMINAL_TEST * tested)


def busiest(found: Suggestion, amounts: Amounts, workers: int) -> tuple[float, float]:
    """How many images the busiest of so many workers trains and tests in a round; a site's training is not divided."""
    workers = min(workers, len(amounts.train))
    return found.epochs * max(sum(amounts.train) / workers, max(amounts.train)), amounts.test / workers


def nominal_per_image(size: int, width: int) -> float:
    """Seconds of training for an image on one nominal core: of the Xeon at 2.5 GHz where this was measured.

    ResNet-10, batch 16, torch 2.13, both of the machine's cores busy; milliseconds by size and width: 2.5 (32, 16), 7.6
    (64, 16), 20.9 (64, 32), 27.0 (128, 16), 6.3 (32, 32). Cores with caches of their own take about half as long.
    """
    return 0.7e-3 + 3.0e-6 * (size / 32) ** 2 * width * (width + 20)
