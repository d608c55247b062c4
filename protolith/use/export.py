"""A finished run's model for other programs: ONNX or safetensors, with all that is needed to use it, and a card."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from protolith import records
from protolith.data.sources.found import Progress, silent
from protolith.encoding.encoders import quiet
from protolith.errors import RunFailed, UserError, unknown
from protolith.files import write_bytes, write_text
from protolith.methods.registry import classify
from protolith.models.backbones import shown, told
from protolith.models.spec import spec_of
from protolith.records import Record, clone
from protolith.runs.run import Run
from protolith.use.card import model_card, resizing
from protolith.use.familiarity import FALSE_ALARMS, JUDGE, Familiarity, familiarity_of
from protolith.use.trained import Trained, looks_of, open_trained

FORMATS = ("onnx", "safetensors")
ALLOWED = 1e-3  # largest difference of a logit between PyTorch and the exported model
TRIED = 32  # images of the check at export
OPSET = 18


@dataclass(frozen=True)
class Exported:
    """What was written, and how far the exported logits are from PyTorch's (ONNX)."""

    files: tuple[Path, ...]
    difference: float | None = None


class _Whole(nn.Module):
    """Logits and features of one pass, and what familiarity is judged by."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Classify normalised images."""
        features = self.model.features(images)  # type: ignore[operator]
        looks = looks_of(images, features, spec_of(self.model))
        return self.model.head(features), features, looks  # type: ignore[operator]


def export(run: Run, to: str, out: Path, progress: Progress = silent) -> Exported:
    """Write a run's global model in another format, and MODEL_CARD.md beside it."""
    if to not in FORMATS:
        raise unknown("format in --to", to, FORMATS)
    trained = open_trained(run)
    if trained.method.predict is not classify:
        raise UserError(f"{trained.config.method} does not predict with its network's own head and cannot be exported.")
    known = None
    try:
        known = familiarity_of(trained, progress)
    except UserError as error:
        progress(f"without prototypes: {error}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        found = _onnx(trained, known, out) if to == "onnx" else _safetensors(trained, known, out)
        card = out.parent / "MODEL_CARD.md"
        write_text(card, model_card(trained, known, out.name, found.difference))
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror or error}).") from None
    return Exported((*found.files, card), found.difference)


def metadata(trained: Trained, known: Familiarity | None) -> dict[str, object]:
    """Everything that a user of the model needs besides its weights."""
    about: dict[str, object] = {
        "model": shown(trained.saved.name),
        "width": trained.saved.width,
        "classes": list(trained.classes),
        "input": {
            "layout": "float32 [batch, 3, size, size], RGB",
            "size": trained.size,
            "resize": f"to size × size, {resizing(trained.saved.spec)}; grey repeated in three channels",
            "fit": trained.saved.spec.plain(),
            "scale": "(pixel / 255 − mean) / std, outside of the graph",
            "mean": list(trained.saved.spec.mean),
            "std": list(trained.saved.spec.std),
        },
        "method": trained.config.method,
        "seed": trained.config.seed,
        "rounds": trained.config.rounds,
    }
    if backbone := trained.saved.backbone:
        about["backbone"] = told(backbone, built=True)
    if known is not None:
        about["sites"] = list(known.sites)
        about["familiarity"] = {
            "false_alarms": FALSE_ALARMS,
            "threshold": known.threshold() if known.threshold() != float("inf") else None,
            "rule": "split looks (an output of the ONNX graph: features, mean and deviation of each input channel, "
            "surface) before its last 7 numbers into f and s; a = min over prototypes with a count above 0 of "
            "|(f − prototype) @ whitening|; b = min over sites of |(s − surfaces[site]) @ surface_whitening[site]|; "
            "distance = max(a / scales[0], b / scales[1]); unfamiliar above threshold",
        }
    return about


def _onnx(trained: Trained, known: Familiarity | None, out: Path) -> Exported:
    onnx, runtime = _libraries()
    model = _Whole(trained.model).to("cpu").eval()
    example = torch.zeros(2, 3, trained.size, trained.size)
    with quiet():
        program = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            opset_version=OPSET,
            input_names=["images"],
            output_names=["logits", "features", "looks"],
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
        )
    assert program is not None
    proto = program.model_proto
    for key, value in metadata(trained, known).items():
        _entry(proto, f"protolith.{key}", value)
    if known is not None:
        for name in JUDGE:
            if name != "calibration":  # of which the threshold is all that is needed
                _entry(proto, f"protolith.{name}", _rounded(getattr(known, name).tolist()))
    onnx.checker.check_model(proto)
    content = proto.SerializeToString()
    difference = _compared(runtime, content, trained)
    write_bytes(out, content)
    return Exported((out,), difference)


def _libraries() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--to onnx needs the package {error.name}: install it with pip install 'protolith[onnx]'."
        ) from None
    return onnx, onnxruntime


def _entry(proto: Any, key: str, value: object) -> None:
    entry = proto.metadata_props.add()
    entry.key, entry.value = key, value if isinstance(value, str) else json.dumps(value)


def _rounded(value: object) -> object:
    if isinstance(value, list):
        return [_rounded(part) for part in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _compared(runtime: Any, content: bytes, trained: Trained) -> float:
    """The largest difference of a logit; labels must be the same, and a batch of another size must work."""
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    images = torch.randint(0, 256, (TRIED, trained.size, trained.size, 3), dtype=torch.uint8)
    inputs = trained.saved.spec.inputs(images, torch.device("cpu")).contiguous()
    expected = trained.ask(images).logits
    found = torch.from_numpy(session.run(["logits"], {"images": inputs.numpy()})[0])
    one = torch.from_numpy(session.run(["logits"], {"images": inputs[:1].numpy()})[0])
    difference = max(float((found - expected).abs().max()), float((one - expected[:1]).abs().max()))
    if not difference <= ALLOWED:
        raise RunFailed(f"the exported model is not the trained one: a logit differs by {difference:.2g}.")
    return difference


def _safetensors(trained: Trained, known: Familiarity | None, out: Path) -> Exported:
    record: Record = clone(trained.model.state_dict())
    if known is not None:
        parts = {name: getattr(known, name) for name in JUDGE}
        record |= records.with_prefix("familiarity", parts)
    records.write(out, record, about=metadata(trained, known))
    example = out.with_name(f"{out.stem}_example.py")
    write_text(example, EXAMPLE.format(file=out.name, name=example.name))
    return Exported((out, example))


EXAMPLE = '''"""Load {file} and label one image: python {name} IMAGE."""

import json, pathlib, sys
import numpy, PIL.Image, torch
from protolith.models import build_model
from protolith.models.spec import InputSpec
from safetensors import safe_open

with safe_open(pathlib.Path(__file__).with_name("{file}"), framework="pt") as file:
    about = json.loads(file.metadata()["about"])
    weights = {{name: file.get_tensor(name) for name in file.keys() if not name.startswith("familiarity/")}}
spec = InputSpec.of(about["input"]["fit"])
model = build_model(
    about["model"], len(about["classes"]), about["width"], 0, spec.size, empty=True, said=about.get("backbone")
)
model.load_state_dict(weights)
image = spec.fit.square(PIL.Image.open(sys.argv[1]).convert("RGB"), spec.size)
pixels = torch.tensor(numpy.asarray(image))[None]
print(about["classes"][int(model.eval()(spec.inputs(pixels, torch.device("cpu"))).argmax())])
'''
