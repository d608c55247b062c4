"""FedCode's style encoder: a ResNet with style-aware instance normalisation (SAIN) in place of BatchNorm."""

import copy
from collections.abc import Collection

import torch
from torch import Tensor, nn

from protolith.errors import UserError
from protolith.models.resnet import ResNet

EPS = 1e-5  # added to a channel's variance: a constant channel has no texture to normalise
REDUCTION = 16  # of the squeeze-and-excitation; FedCode gives none, 16 is that of its own paper
STAGES = (0, 1, 2, 3, 4)  # the stem and the four stages of a ResNet


class SAIN(nn.Module):
    """Keeps what instance normalisation would remove, channel by channel as strongly as it has learned.

    Where the network computes in bfloat16 this is done in float32, or channels that hardly vary would cancel out.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(1, channels // REDUCTION)
        self.squeeze = nn.Linear(channels, hidden)
        self.excite = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """F_out = w · (F − F_norm), w = SE(F − F_norm) (Eqs. 5-7)."""
        given, x = x.dtype, x.float() if x.dtype == torch.bfloat16 else x
        mean = x.mean(dim=(2, 3), keepdim=True)
        variance = (x - mean).square().mean(dim=(2, 3), keepdim=True)  # ten times faster than torch.var_mean
        inverse = torch.rsqrt(variance + EPS)
        # F_norm has mean zero, so that the pooled style map is the pooled map itself.
        weights = torch.sigmoid(self.excite(torch.relu(self.squeeze(mean.flatten(1)))))[:, :, None, None]
        # w (F − (F − μ) / σ), as one multiplication and one addition per pixel.
        return torch.addcmul(weights * mean * inverse, x, weights * (1.0 - inverse)).to(given)


class StyleEncoder(nn.Module):
    """The encoder of a ResNet, its weights drawn anew, with SAIN in the given stages (0 is the stem)."""

    def __init__(self, like: nn.Module, seed: int, stages: Collection[int] = STAGES) -> None:
        super().__init__()
        if not isinstance(like, ResNet):
            raise UserError(
                f"FedCode's style encoder is made from a ResNet, not from {type(like).__name__}. "
                "Allowed for model.name: resnet10, resnet18."
            )
        self.encoder = copy.deepcopy(like).train()
        self.encoder.head = nn.Identity()  # type: ignore[assignment]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for stage in stages:
                _replace(self.encoder, stage)
            for module in self.encoder.modules():
                if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                    module.reset_parameters()

    def forward(self, images: Tensor) -> Tensor:
        """Encode images into style features, as many as the semantic ones."""
        return self.encoder.features(images)


def _replace(network: ResNet, stage: int) -> None:
    """Put SAIN in the place of every BatchNorm of a stage."""
    inside = "bn1" if stage == 0 else f"layer{stage}."
    norms = {name: m for name, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    for name, norm in norms.items():
        if name == inside or name.startswith(inside):
            parent, _, last = name.rpartition(".")
            device = norm.running_mean.device if norm.running_mean is not None else None
            setattr(network.get_submodule(parent), last, SAIN(norm.num_features).to(device))
