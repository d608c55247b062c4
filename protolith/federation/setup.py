"""What is to be trained: everything that a worker on another machine needs to know."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from protolith.data.protocols import Protocol
from protolith.methods.base import Training


class ModelSettings(BaseModel):
    """Which network, and how wide."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field("resnet10", description="the network (resnet10, resnet18, or a registered one)")
    width: int = Field(64, ge=1, description="channels of the first stage; 64 in the papers")


class Setup(BaseModel):
    """A resolved experiment, without the place where it runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    method: str = Field("fedavg", description="the algorithm")
    task: str = Field("mini", description="the data: a task's name, or a folder of domain/class/image")
    data: str = Field("", description="directory with the task's data; empty: PROTOLITH_DATA, the cache, then the hub")
    size: int = Field(32, ge=16, le=512, description="height and width of the network's input")
    seed: int = Field(0, ge=0, description="all random numbers of the run follow from it")
    rounds: int = Field(100, ge=1, description="communication rounds")
    buffers: Literal["average", "local"] = Field(
        "average", description="BatchNorm's statistics: averaged with the weights, or kept by each client"
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto, cpu, cuda or mps")
    plugins: list[str] = Field([], description="modules or .py files with methods or models of your own")
    protocol: Protocol = Protocol()
    model: ModelSettings = ModelSettings()
    training: Training = Training()
    params: dict[str, Any] = Field({}, description="the method's own options")
