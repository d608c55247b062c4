"""What an image looks like without a network: seven numbers about light, colour and edges.

Networks are blind to much of what makes an image strange: they put simple drawings nearer to their prototypes than the
images that they were trained on. These numbers see it. They are in logarithms, so that far too little (no colour, no
texture) is as strange as far too much.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 7
LEVEL = 1.0 / 255.0  # one grey level: less than that is nothing
FLAT = 12.5 / 765.0  # steps below four grey levels are no edges; the sums of 8-bit colours never hit this value
SCALES = (1, 2, 4)  # pixels over which steps are taken


def surface(pixels: Tensor) -> Tensor:
    """Describe images [n, 3, h, w] from 0 to 1 by [n, 7].

    Lightness and contrast; colourfulness; the mean step between neighbouring pixels in the image, in half of its size
    and in a quarter; and the share of the image that is flat.
    """
    grey = pixels.mean(dim=1, keepdim=True)
    light = grey.flatten(1)
    colour = (pixels - grey).abs().flatten(1).mean(dim=1)
    steps = [_steps(grey if scale == 1 else F.avg_pool2d(grey, scale)) for scale in SCALES]
    flat = (steps[0] < FLAT).to(pixels.dtype).mean(dim=1)
    contrast = light.var(dim=1, correction=0).clamp_min(0.0).sqrt()
    sizes = [_log(value) for value in (contrast, colour, *(step.mean(dim=1) for step in steps))]
    return torch.stack([_log_odds(light.mean(dim=1)), *sizes, _log_odds(flat)], dim=1)


def _steps(grey: Tensor) -> Tensor:
    """How far each pixel is from the ones below and beside it, together."""
    here, below, beside = grey[..., :-1, :-1], grey[..., 1:, :-1], grey[..., :-1, 1:]
    return ((below - here).square() + (beside - here).square()).sqrt().flatten(1)


def _log(value: Tensor) -> Tensor:
    return (value + LEVEL).log()


def _log_odds(share: Tensor) -> Tensor:
    return ((share + LEVEL) / (1.0 - share + LEVEL)).log()
