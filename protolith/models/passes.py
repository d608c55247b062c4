"""The only loop of images through a network; a training step is elsewhere (methods/fedavg.py)."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn

BATCH = 64  # small enough for the cache
Said = TypeVar("Said")


def answers(model: nn.Module, images: Tensor, ask: Callable[[Tensor], Said]) -> Iterator[Said]:
    """What `ask` says of each batch of stored images [n, h, w, 3], with the network in evaluation mode."""
    model.eval()
    for batch in torch.split(images, BATCH) if len(images) else ():
        with torch.inference_mode():
            said = ask(batch)
        yield said
