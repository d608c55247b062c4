"""What encodes images: ONNX Runtime in all cores where it is installed, PyTorch otherwise."""

import contextlib
import hashlib
import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor, nn

from protolith.data.sources.found import Progress
from protolith.machine import cores
from protolith.models.backbones import Backbone

Part = Literal["features", "maps"]
GRAPH = 1  # raise it when the exported graph changes
OPSET = 18
TRIED = 2  # images that both encode before the exported network is trusted
ALLOWED = 1e-4  # largest difference, relative to the largest number where that is above 1


@dataclass(frozen=True)
class Encoder:
    """A frozen network: stored images uint8 [n, h, w, 3] to features or maps, float32."""

    name: str
    encode: Callable[[Tensor], Tensor]


class _Graph(nn.Module):
    """From stored images to a backbone's features or maps, its normalisation included, as it is exported.

    `InputSpec.inputs` changes its tensors in place, which the older exporter gets wrong.
    """

    middle: Tensor
    scale: Tensor

    def __init__(self, backbone: Backbone, part: Part) -> None:
        super().__init__()
        self.network, self.part = backbone.network, part
        for name, values in (("middle", backbone.spec.mean), ("scale", backbone.spec.std)):
            self.register_buffer(name, (torch.tensor(values) * 255).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Encode."""
        return _ask(self.network, self.part, (images.permute(0, 3, 1, 2).float() - self.middle) * (1 / self.scale))


def _ask(network: nn.Module, part: Part, seen: Tensor) -> Tensor:
    encode = network.features if part == "features" else network.lower
    out: Tensor = encode(seen)  # type: ignore[operator]
    return out


def encoder_for(backbone: Backbone, part: Part, size: int, folder: Path, sha256: str, say: Progress) -> Encoder:
    """The fastest encoder that is here and gives the network's own numbers."""
    plain = by_torch(backbone, part)
    try:
        import onnxruntime
    except ImportError:
        return plain
    parts = json.dumps([GRAPH, OPSET, backbone.name, sha256, backbone.spec.plain(), part, size])
    file = folder / f"graph-{hashlib.sha256(parts.encode()).hexdigest()[:16]}.onnx"
    for made_anew in (False, True):
        if made_anew or not file.is_file():
            say(f"{backbone.name} is exported for ONNX Runtime, once")
            if (reason := _exported(_Graph(backbone, part).eval(), size, file)) is not None:
                say(f"{backbone.name} cannot be exported for ONNX Runtime ({reason}), so PyTorch encodes")
                return plain
        if (found := _opened(onnxruntime, file)) is not None and _alike(found, plain, size):
            return found
    say(f"{backbone.name}: ONNX Runtime gives other numbers than PyTorch, so PyTorch encodes")
    return plain


def by_torch(backbone: Backbone, part: Part) -> Encoder:
    """PyTorch as the encoder."""
    network = backbone.network.eval()

    def encode(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return _ask(network, part, backbone.spec.inputs(images, torch.device("cpu"))).float()

    return Encoder(f"PyTorch {torch.__version__}", encode)


def _opened(runtime: Any, file: Path) -> Encoder | None:
    """A session in all cores; None where the file is damaged."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = cores()
    options.log_severity_level = 3
    try:
        session = runtime.InferenceSession(file.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception:  # its errors share no class of their own
        return None

    def encode(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(["out"], {"images": images.contiguous().numpy()})[0])

    return Encoder(f"ONNX Runtime {runtime.__version__}", encode)


def _alike(found: Encoder, plain: Encoder, size: int) -> bool:
    images = torch.randint(0, 256, (TRIED, size, size, 3), dtype=torch.uint8, generator=torch.Generator())
    try:
        one, other = found.encode(images), plain.encode(images)
    except Exception:  # as above; a graph that cannot be run is as good as none
        return False
    if one.shape != other.shape:
        return False
    if not bool(torch.isfinite(other).all()):
        return True  # whoever encodes with it is told
    return float((one - other).abs().max()) <= ALLOWED * max(1.0, float(other.abs().max()))


def _exported(network: nn.Module, size: int, file: Path) -> str | None:
    """Write the network as ONNX; what prevents it, where something does."""
    example = torch.zeros(TRIED, size, size, 3, dtype=torch.uint8)
    older: dict[str, Any] = {"dynamo": False, "dynamic_axes": {"images": {0: "batch"}, "out": {0: "batch"}}}
    batch = torch.export.Dim("batch", min=1)
    newer = {"dynamo": True, "dynamic_shapes": ({0: batch},), "external_data": False}
    named: dict[str, Any] = {"opset_version": OPSET, "input_names": ["images"], "output_names": ["out"]}
    reason = ""
    for how in (older, newer):  # of seconds against tens of seconds, for the same graph
        try:
            with quiet(), TemporaryDirectory(prefix=".writing-", dir=file.parent) as place:
                torch.onnx.export(network, (example,), Path(place) / file.name, **named, **how)
                (Path(place) / file.name).replace(file)
        except OSError:
            raise
        except Exception as error:  # an exporter raises nearly anything, and there is another way
            reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
        else:
            return None
    return reason


@contextlib.contextmanager
def all_cores() -> Iterator[None]:
    """Let PyTorch use every core while images are encoded."""
    before = torch.get_num_threads()
    torch.set_num_threads(cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's own words off the terminal."""
    level = logging.getLogger("torch.onnx").level
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.getLogger("torch.onnx").setLevel(level)
