"""What is to be trained: everything that a worker on another machine needs to know."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from protolith.data.protocols import Protocol
from protolith.data.sources.decode import PLAIN, Fit
from protolith.evaluation.measures import ACCURACY
from protolith.federation.layers.attack import Attack
from protolith.federation.layers.robust import Kind
from protolith.methods.base import Training
from protolith.models.spec import InputSpec
from protolith.models.tuned import FROZEN, Tune
from protolith.prototypes.privacy import Privacy

# What Strata's options were called before they were those of two layers: in `params` then, in `training` now.
RENAMED = {"strata": {"exchange": "style_exchange", "draw": "style_draw", "balance": "style_balance"}}


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of any version under today's names; what was said under an old name wins."""
    names, params = RENAMED.get(str(settings.get("method")), {}), settings.get("params")
    if not isinstance(params, dict) or not names.keys() & params.keys():
        return dict(settings)
    moved = {names[name]: value for name, value in params.items() if name in names}
    rest = {name: value for name, value in params.items() if name not in names}
    return {**settings, "params": rest, "training": {**dict(settings.get("training", {})), **moved}}


class ModelSettings(BaseModel):
    """Which network, and how wide, or which pretrained backbone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("resnet10", description="the network: one of `protolith models`, or a registered one")
    width: int = Field(64, ge=1, description="channels of the first stage; 64 in the papers; a backbone has its own")
    weights: str = Field("", description="a file with a backbone's weights (.safetensors, .pth); empty: its package's")
    sha256: str = Field("", description="of a backbone's weights, which must have it; written when a run begins")
    tag: str = Field("", description="which weights these are; written when a run begins")
    tune: Tune = Field(
        "scratch",
        description="what of a pretrained backbone is trained: head (the rest is frozen and computed once), last (its "
        "last stage too), all, or scratch, from weights that the seed draws; head, unless another is said",
    )
    projection: int = Field(
        0, ge=0, description="length of a trained layer between backbone and head, where prototypes can live; 0: none"
    )
    scale: float = Field(
        0.0, ge=0, le=1000, description="length that each image's pretrained features get; 0: as they are"
    )
    views: int = Field(
        0, ge=0, le=64, description="augmented views of each training image that a frozen backbone encodes besides"
    )
    input: dict[str, Any] = Field({}, description="what a backbone wants to see; written when a run is resolved")

    @field_validator("input")
    @classmethod
    def _sound_input(cls, values: dict[str, Any]) -> dict[str, Any]:
        return InputSpec.of(values).plain() if values else {}

    @property
    def frozen(self) -> bool:
        """Whether a part of the network is computed once, so that clients train on what it made of images."""
        return self.tune in FROZEN

    @property
    def fit(self) -> Fit:
        """How an image of any shape becomes a square for it."""
        return InputSpec.of(self.input).fit if self.input else PLAIN


class GuardSettings(BaseModel):
    """What the server does about uploads that are wrong or odd."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    strikes: int = Field(
        3, ge=0, description="a client whose uploads were rejected so many times in a row sits out; 0: never"
    )
    norm: Literal["flag", "clip", "drop"] = Field(
        "flag",
        description="what becomes of an upload whose norm is far beyond the others': it is named in the metrics, and "
        "with clip brought down to the limit, with drop rejected (these two hold a round's uploads in memory)",
    )
    z: float = Field(
        8.0, gt=0, description="how far: robust deviations of the norm's logarithm from the round's median"
    )


class Setup(BaseModel):
    """A resolved experiment, without the place where it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    method: str = Field("fedavg", description="the algorithm")
    task: str = Field("mini", description="the data: a task's name, a folder of site/class/image, or a manifest")
    data: str = Field("", description="directory with the task's data; empty: PROTOLITH_DATA, the cache, then the hub")
    skip_bad: bool = Field(False, description="leave out images of your own that cannot be read (else: an error)")
    size: int = Field(32, ge=16, le=512, description="height and width of the network's input")
    seed: int = Field(0, ge=0, description="all random numbers of the run follow from it")
    rounds: int = Field(100, ge=1, description="communication rounds")
    buffers: Literal["average", "local"] = Field(
        "average", description="BatchNorm's statistics: averaged with the weights, or kept by each client"
    )
    tested: Literal["auto", "global", "trained", "aggregated"] = Field(
        "auto",
        description="which models are tested: the global one, the clients' own after training, or the aggregated "
        "weights with each client's own BatchNorm statistics; auto: the global one, but the clients' own where a "
        "method has no global model and in protocol 'local'",
    )
    measures: list[str] = Field(
        [ACCURACY], description="what is counted on the answers to test images: accuracy always; per-class, or your own"
    )
    device: str = Field("auto", description="auto, cpu, cuda or mps; cuda:1 is the second one")
    plugins: list[str] = Field([], description="modules, .py or .toml files with methods, models or tasks of your own")
    robust: Kind = Field(
        "mean",
        description="how the server makes one of many uploads: the method's own mean, or a rule that bears bad clients "
        "(clip, trimmed, median, geometric-median, multi-krum; a round's uploads are then all held in memory)",
    )
    robust_share: float = Field(0.2, ge=0, lt=0.5, description="share of bad clients that `robust` has to bear")
    guard: GuardSettings = GuardSettings()
    attack: Attack = Attack()
    protocol: Protocol = Protocol()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    privacy: Privacy = Privacy()
    params: dict[str, Any] = Field({}, description="the method's own options")

    @model_validator(mode="before")
    @classmethod
    def _todays_names(cls, values: Any) -> Any:
        return with_new_names(values) if isinstance(values, dict) else values

    @field_validator("device")
    @classmethod
    def _known_device(cls, name: str) -> str:
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", name):
            expected = "'auto', 'cpu', 'cuda' or 'mps'"
            raise PydanticCustomError("device", "input should be {expected}", {"expected": expected})
        return name

    @model_validator(mode="after")
    def _own_statistics(self) -> "Setup":
        if self.tested == "aggregated" and self.buffers != "local":
            raise ValueError("tested = 'aggregated' needs buffers = 'local', or all clients' models are the same")
        return self
