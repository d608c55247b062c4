"""A backbone of a few weights, a task of a few images, and processes that die while they encode it."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

from protolith.data.domain import Domain, Split, Task
from protolith.encoding import Views, encode, encode_task, encoders
from protolith.errors import DiskRefused
from protolith.models.backbones import Backbone
from protolith.models.spec import InputSpec

SIZE = 12


class Tiny(nn.Module):
    """Two convolutions, divided between them; counts the images that it has seen."""

    def __init__(self, at=None, act=None):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.second = nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 5, 3)
        self.seen, self.at, self.act = 0, at, act

    def lower(self, images):
        self.seen += len(images)
        if self.act and self.seen >= self.at:
            self.act()
        return self.first(images).relu()

    def upper(self, maps):
        return self.second(maps).mean(dim=(2, 3))

    def features(self, images):
        return self.upper(self.lower(images))


def tiny(name="tiny", sha256="0" * 64, network=None, spec=None):
    return Backbone(name, "", sha256, spec or InputSpec(SIZE), 5, network or Tiny())


def make_task(count=20, size=SIZE, names=("a", "b*"), seed=0):
    def split(seed, count):
        rng = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=rng)
        return Split(images, torch.arange(count) % 2)

    domains = [Domain(name, split(seed + 2 * i, count), split(seed + 2 * i + 1, 7)) for i, name in enumerate(names)]
    return Task("toy", ("x", "y"), tuple(domains), ("a: a note",))


def take_torch(put=setattr):
    put(encode, "encoder_for", lambda backbone, part, *rest: encoders.by_torch(backbone, part))


def take_small_pieces(put=setattr):
    put(encode, "PIECE", 4)


def no_more():
    """From now on the disk takes nothing beyond the first 500 bytes of a file."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (500, resource.RLIM_INFINITY))


def wait(folder):
    (folder / "here").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def main(folder, what, *rest):
    """One process: dies, fills the disk or waits at its 30th image."""
    take_torch()
    take_small_pieces()
    acts = {
        "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "fill": no_more,
        "wait": lambda: wait(folder),
        "count": None,
    }
    if what == "full":
        no_more()
    network = Tiny(30, acts.get(what))
    try:
        found = encode_task(make_task(), tiny(network=network), views=Views(2), cache=folder, progress=print)
        print(found.file.name, network.seen)
    except DiskRefused as error:
        print(f"refused: {error}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
