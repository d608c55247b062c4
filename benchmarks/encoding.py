"""Speed of encoding against PyTorch alone and against ONNX Runtime called by hand, on the same images.

    python -m benchmarks.encoding [--model NAME] [--size PIXELS] [--images N] [--repeats N] [--views K]

From the clone's own directory. The ways take turns in short runs, so that another load of the machine falls on all
alike; what counts is the ratio. Decoding is not timed. Encoding as the product does it includes normalising, the
images' colours, checking, and writing the file; by hand, images are normalised floats already.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from protolith.data.domain import Domain, Split, Task
from protolith.encoding import Views, encode_task
from protolith.encoding.encode import BATCH
from protolith.encoding.encoders import all_cores, by_torch, encoder_for
from protolith.machine import cores
from protolith.models.backbones import Backbone, Divided, open_backbone

PLAIN = "by hand"


def photographs(count: int, size: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=rng)


def by_hand(backbone: Backbone, images: torch.Tensor, place: Path) -> Callable[[], object]:
    """What a user of ONNX Runtime writes: a graph of the network alone, and batches of normalised floats."""
    import onnxruntime

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = backbone.network

        def forward(self, seen: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.network.features(seen)  # type: ignore[operator]
            return out

    size = images.shape[1]
    torch.onnx.export(
        Plain().eval(), (torch.zeros(2, 3, size, size),), place / "plain.onnx", dynamo=False, input_names=["seen"],
        output_names=["out"], dynamic_axes={"seen": {0: "batch"}, "out": {0: "batch"}},
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(str(place / "plain.onnx"), options, providers=["CPUExecutionProvider"])
    batches = [backbone.spec.inputs(b, torch.device("cpu")).contiguous().numpy() for b in torch.split(images, BATCH)]
    return lambda: np.concatenate([session.run(["out"], {"seen": batch})[0] for batch in batches])


def ways(backbone: Backbone, images: torch.Tensor, views: int, place: Path) -> dict[str, Callable[[], object]]:
    """The ways to encode, each with everything made that is made once."""
    count, size = len(images), images.shape[1]
    encoder_for(backbone, "features", size, place, backbone.sha256, print)
    split = Split(images, torch.zeros(count, dtype=torch.int64))
    task = Task("speed", ("one",), (Domain("all", split, Split(images[:0], split.labels[:0])),))
    pytorch, made = by_torch(backbone, "features"), iter(range(10**6))

    def product() -> object:
        folder = place / str(next(made))
        (folder / "encoded").mkdir(parents=True)
        for graph in place.glob("*.onnx"):
            (folder / "encoded" / graph.name).hardlink_to(graph)
        return encode_task(task, backbone, views=Views(views), cache=folder)

    return {
        "product": product,
        "PyTorch": lambda: torch.cat([pytorch.encode(batch) for batch in torch.split(images, BATCH)]),
        PLAIN: by_hand(backbone, images, place),
    }


def main() -> None:
    """Measure in turns and print images a second, and the product's ratio to the others."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="efficientnet-lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--views", type=int, default=0, help="views of each image, which only the product makes")
    given = parser.parse_args()
    backbone = open_backbone(given.model, size=given.size)
    assert isinstance(backbone.network, Divided)
    images, found = photographs(given.images, given.size), dict[str, list[tuple[float, float]]]()
    with tempfile.TemporaryDirectory() as place, all_cores():
        tried = ways(backbone, images, given.views, Path(place))
        for repeat in range(given.repeats + 1):  # the first warms up
            for name, encode in tried.items():
                count = len(images) * (1 + given.views if name == "product" else 1)
                wall, cpu = time.perf_counter(), time.process_time()
                encode()
                rates = count / (time.perf_counter() - wall), count / (time.process_time() - cpu)
                if repeat:
                    found.setdefault(name, []).append(rates)
    for name, rates in found.items():
        wall, cpu = (statistics.median(column) for column in zip(*rates, strict=True))
        ratios = [p[0] / o[0] for p, o in zip(found["product"], rates, strict=True)]
        print(
            f"{name:8} {wall:8.1f} pictures/s, {cpu:8.1f} a core-second; product / {name}: "
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        )


if __name__ == "__main__":
    main()
