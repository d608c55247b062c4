"""The result of a run: what summary.json says."""

from collections.abc import Mapping
from typing import Self

from pydantic import Field

from protolith.evaluation.cross import CrossDomain
from protolith.evaluation.tested import WORDS, Tested
from protolith.runs.round import Json, Measured, Plain, Spent

# A later version that changes summary.json raises the number. In the first, a sentence says which models were tested.
FORMAT = 2


class Absence(Plain):
    """A site that was not tested in all rounds that count: the last that it was in, and those that it missed."""

    last: int | None = None
    accuracy: float | None = None
    missed: tuple[int, ...]


class Robustness(Plain):
    """The rule in place of the mean, and the share of bad clients that it has to bear."""

    rule: str
    share: float


class Attacked(Plain):
    """An attack in a simulation: its kind, what is said of it, and the clients that lie."""

    kind: str
    said: str
    clients: tuple[str, ...]


class Began(Plain):
    """The file of the starting weights, and what became of its tensors."""

    file: str
    kept: int
    of: int
    drawn: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


class Summary(Plain):
    """A finished run's result; accuracies are in per cent."""

    method: str
    task: str
    protocol: str
    seed: int
    rounds: int
    rule: str  # how the numbers were taken
    tested: Tested = Tested.GLOBAL
    accuracy: dict[str, float]  # by domain
    mean: float
    by_images: float | None = None
    notes: tuple[str, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    rejected: int = 0
    flagged: int = 0
    sitting_out: tuple[str, ...] = ()
    seconds: float = 0.0
    versions: dict[str, str] = Field({})
    allocation: str = ""  # SHA-256 of who held which images
    privacy: Spent | None = None
    absent: dict[str, Absence] = Field({})
    backbone: Json | None = None  # which pretrained network, with the SHA-256 of its weights
    plugins: dict[str, str] = Field({})
    robust: Robustness | None = None
    attack: Attacked | None = None
    measures: dict[str, Measured] = Field({})
    across: dict[str, float] = Field({})
    cross: CrossDomain | None = None
    matrix: dict[str, list[float]] = Field({})
    init: Began | None = None

    @classmethod
    def of(cls, values: Mapping[str, object], written: int = FORMAT) -> Self:
        """Read a summary that was written in some format; ValueError where it is none."""
        if written == 1:
            said = {words: tested for tested, words in WORDS.items()}
            values = {**values, "tested": said.get(str(values.get("accuracy_of")), Tested.GLOBAL)}
        return cls.model_validate(values)

    @property
    def is_global(self) -> bool:
        """Tell whether it is the global model's."""
        return self.tested is Tested.GLOBAL

    def to_json(self) -> Json:
        """What there is to say, as plain values."""
        return {"format": FORMAT, **super().to_json()}
