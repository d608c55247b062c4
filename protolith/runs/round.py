"""What came of a round: a line of metrics.jsonl."""

import math
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from protolith.evaluation.cross import CrossDomain

# Of a line of metrics.jsonl; a later version that changes it raises the number. In the first, which says no number,
# rounds count from 0.
FORMAT = 2

Json = dict[str, JsonValue]
# JSON has no number that is not finite: it is written as null.
Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]


class Plain(BaseModel):
    """Something that is written down as JSON and never changed; what a later version adds is left out."""

    model_config = ConfigDict(frozen=True)

    def to_json(self) -> Json:
        """What there is to say, as plain values."""
        return self.model_dump(mode="json", exclude_unset=True)


class Measured(Plain):
    """A measure's values: by domain, their mean, by images, and by class where it has such values."""

    domains: dict[str, Number]
    mean: Number
    by_images: float | None = None
    classes: list[float | None] | None = None


class Rejected(Plain):
    """An upload that was turned away."""

    client: str
    reason: str


class Flagged(Plain):
    """A norm far beyond the others': what of the upload has it, and by how many deviations."""

    client: str
    what: str
    z: float


class Missing(Plain):
    """A site that did not answer, in training or in the test."""

    site: str
    phase: str
    reason: str


class Spent(Plain):
    """What the prototypes have cost of the client with the most releases: (ε, δ)."""

    epsilon: float
    epsilon_replace: float
    delta: float
    releases: int
    of: str = ""


class Round(Plain):
    """A round; accuracies are in per cent, and absent where it was not tested."""

    round: int = Field(strict=True)  # counted from 1
    accuracy: dict[str, float] = Field({})  # by domain
    mean: float | None = None
    by_images: float | None = None
    measures: dict[str, Measured] = Field({})
    validation: float | None = None
    across: dict[str, float] = Field({})
    cross: CrossDomain | None = None
    matrix: dict[str, list[float]] = Field({})
    loss: dict[str, Number] = Field({})
    bytes_down: int = 0
    bytes_up: int = 0
    clients: int = 0
    images: int | None = None
    dropped: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    flagged: tuple[Flagged, ...] = ()
    sitting_out: tuple[str, ...] = ()
    seconds: dict[str, float] = Field({})  # by phase, and in all
    missing: tuple[Missing, ...] = ()
    privacy: Spent | None = None

    @classmethod
    def of(cls, values: Mapping[str, object], written: int = FORMAT) -> Self:
        """Read a round that was written in some format; ValueError where it is none."""
        found = cls.model_validate(values)
        return found.model_copy(update={"round": found.round + 1}) if written == 1 else found

    @property
    def tested(self) -> bool:
        """Tell whether the round was tested."""
        return bool(self.accuracy)

    @property
    def untested(self) -> list[str]:
        """The sites that did not answer in the test."""
        return [one.site for one in self.missing if one.phase == "test"]
