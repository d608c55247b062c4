"""A client with two encoders: the shared one for meaning, and one for style that never leaves it (FedCode)."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from protolith.methods import with_prototypes
from protolith.methods.base import Batch, Context, Output
from protolith.models.spec import see
from protolith.models.style import STAGES, StyleEncoder
from protolith.records import Record, clone, under_prefix, with_prefix
from protolith.seeds import derive


class Params(with_prototypes.Params):
    """Options of a client with two encoders."""

    proto_pass: Literal["last_epoch_train", "eval_pass"] = Field(
        "eval_pass", description="prototypes from a pass after training (as Alg. 1), or from the last epoch's features"
    )
    stages: tuple[Annotated[int, Field(ge=0, le=4)], ...] = Field(
        STAGES, description="where SAIN replaces BatchNorm; 0 is the stem; none at all: Fig. 6 without SAIN"
    )


@dataclass(frozen=True)
class Decoupled(Output):
    """Semantic features, their logits, and style features."""

    style: Tensor


class Client(with_prototypes.Client):
    """Trains both encoders together; all clients begin with the same style encoder."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.style = StyleEncoder(self.model, derive(context.run_seed, "style"), self.params.stages)

    @staticmethod
    def check(model: nn.Module) -> None:
        """Refuse what no style encoder can be made from."""
        StyleEncoder(model, seed=0)

    def start(self) -> None:
        """Go on with the own style encoder."""
        super().start()
        if own := under_prefix("style", self.memory):
            self.style.load_state_dict(own)

    def fit(self, parameters: Iterable[nn.Parameter], epochs: int) -> None:
        """Train both encoders and the head."""
        super().fit([*parameters, *self.style.parameters()], epochs)

    def forward(self, batch: Batch) -> Decoupled:
        """Pass a batch through both encoders."""
        out = super().forward(batch)
        return Decoupled(out.features, out.logits, self.style(batch.images))

    def observe(self, batch: Batch, out: Output) -> None:
        """Collect both kinds of features side by side."""
        assert isinstance(out, Decoupled)
        super().observe(batch, replace(out, features=torch.cat([out.features, out.style], dim=1)))

    def look_at(self, images: Tensor) -> Tensor:
        """The features of both encoders in evaluation mode."""
        return torch.cat([super().look_at(images), self.style.eval()(see(self.model, images))], dim=1)

    def prototypes(self) -> Record:
        """Semantic prototypes by class (Eq. 2), and the mean style of all images (Eq. 8)."""
        assert self.means is not None
        semantic = self.means.means().chunk(2, dim=1)[0]
        style = self.means.sums.sum(dim=0).chunk(2)[1] / self.means.counts.sum()
        return {"prototypes": semantic.contiguous(), "counts": self.means.counts, "style": style.float()}

    def remember(self) -> Record:
        """Keep the style encoder."""
        return {**super().remember(), **with_prefix("style", clone(self.style.state_dict()))}
