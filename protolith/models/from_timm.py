"""`timm:NAME[.TAG]` or `timm:DIRECTORY`: networks of timm, with the input that timm's own configuration says.

Features are what timm hands back without a classifier (`num_classes=0`): pooled, and normalised where the network does
so. A directory is one that timm wrote (`config.json` and a file of weights). The SHA-256 is that of the file.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from protolith.errors import UserError, nearest
from protolith.models.encoder import Backbone
from protolith.models.hub import find_file, load_library, read_json
from protolith.models.spec import InputSpec, at_size
from protolith.models.weights import Weights, read_weights

PREFIX = "timm:"
FILES = ("model.safetensors", "pytorch_model.bin", "model.pth")
RESIZE = {"center": "crop", "squash": "squash", "border": "pad"}  # timm's crop modes
PLACES = ("url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source")  # of weights, which are found here


class TimmEncoder(nn.Module):
    """A network of timm without its classifier."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return cast(Tensor, self.network(images)).flatten(1)


@dataclass(frozen=True)
class Known:
    """What timm knows of a network: its architecture, the arguments that build it, and its configuration."""

    architecture: str
    args: Mapping[str, Any]
    config: Mapping[str, Any]
    folder: Path | None

    @property
    def spec(self) -> InputSpec:
        """What it wants to see."""
        config = self.config
        _, height, width = config["input_size"]
        resize, share = RESIZE.get(config["crop_mode"]), float(config["crop_pct"])
        values = {
            "size": height, "mean": list(config["mean"]), "std": list(config["std"]), "resize": resize, "share": share,
            "interpolation": config["interpolation"],
        }  # fmt: skip
        if height != width or (resize == "pad" and share != 1.0):
            raise ValueError("its images are no plain squares")
        return InputSpec.of(values)

    def at(self, size: int | None) -> dict[str, Any]:
        """The arguments that build it for images of this size."""
        moved = self.config.get("fixed_input_size") and size not in (None, self.config["input_size"][1])
        return {**self.args, "img_size": size} if moved else dict(self.args)


def input_of(name: str) -> InputSpec:
    """What a network wants to see, by timm's configuration."""
    return _spec(name, _known(name))


def open_backbone(name: str, weights: str = "", size: int | None = None) -> Backbone:
    """Open a network with its weights: from a file, its folder, the hub's cache or the hub."""
    known = _known(name)
    found = read_weights(Path(weights) if weights else _weights_file(name, known))
    network = _loaded(name, known, found, size)
    head, length = network.get_classifier(), _length(network)
    fits = isinstance(head, nn.Linear) and head.in_features == length
    network.reset_classifier(0)
    tag = found.file.name if weights else str(known.config.get("tag") or (known.folder or found.file).name)
    return Backbone(
        name, tag, found.sha256, at_size(_spec(name, known), size), length, TimmEncoder(network).eval(),
        head.eval() if fits else None, {"architecture": known.architecture, "args": known.at(size)},
    )  # fmt: skip


def empty_backbone(name: str, size: int | None = None, said: Mapping[str, Any] | None = None) -> Backbone:
    """The same network with random weights, built from what a model's file says of it."""
    timm = load_library("timm", "timm", name)
    if said is None:
        known = _known(name)
        built: dict[str, Any] = {"architecture": known.architecture, "args": known.at(size)}
        spec = _spec(name, known)
    else:
        built, spec = dict(said["built"]), InputSpec.of(said["input"])
    network = timm.create_model(built["architecture"], pretrained=False, num_classes=0, **built["args"])
    return Backbone(name, "", "", at_size(spec, size), _length(network), TimmEncoder(network), built=built)


def _known(name: str) -> Known:
    timm = load_library("timm", "timm", name)
    plain = name.removeprefix(PREFIX)
    if (folder := Path(plain)).is_dir():
        return _in_folder(folder)
    architecture, _, tag = plain.partition(".")
    if not timm.is_model(architecture):
        near = nearest(architecture, timm.list_models())
        raise UserError(f"timm has no network '{architecture}', and there is no such folder."
                        + (f" Did you mean '{PREFIX}{near[0]}'?" if near else ""))  # fmt: skip
    if tag and plain not in timm.list_pretrained(f"{architecture}.*"):
        tags = [other.partition(".")[2] for other in timm.list_pretrained(f"{architecture}.*")]
        raise UserError(f"timm has no weights '{tag}' of {architecture}: it has {', '.join(tags) or 'none'}.")
    return Known(architecture, {}, timm.get_pretrained_cfg(plain).to_dict(), None)


def _in_folder(folder: Path) -> Known:
    """What the configuration says that timm wrote beside the weights."""
    import timm

    said = read_json(folder / "config.json")
    try:
        architecture, args = str(said["architecture"]), dict(said.get("model_args") or {})
        kept = {key: value for key, value in said["pretrained_cfg"].items() if key not in PLACES}
        default = timm.get_pretrained_cfg(architecture, allow_unregistered=False).to_dict()
    except (LookupError, TypeError, AttributeError, RuntimeError):
        raise UserError(f"'{folder / 'config.json'}' is not what timm writes beside its weights.") from None
    args.pop("num_classes", None)
    config = {**default, **kept, "architecture": architecture}
    if args.get("dynamic_img_size") or args.get("strict_img_size") is False:
        config["fixed_input_size"] = False
    if config["fixed_input_size"] and (size := args.get("img_size")):  # what it was built for, not what it came from
        config["input_size"] = (3, *([size, size] if isinstance(size, int) else size))
    return Known(architecture, args, config, folder)


def _spec(name: str, known: Known) -> InputSpec:
    try:
        return known.spec
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{name}: images cannot be shown to it as timm's configuration wants them.") from None


def _weights_file(name: str, known: Known) -> Path:
    if known.folder:
        if here := [known.folder / file for file in FILES if (known.folder / file).is_file()]:
            return here[0]
        raise UserError(f"the folder '{known.folder}' holds no weights ({', '.join(FILES)}).")
    if not (repository := known.config.get("hf_hub_id")):
        raise UserError(f"timm knows no weights of {name}: name a file that you have with --weights FILE.")
    own = known.config.get("hf_hub_filename")
    for file in (own,) if own else FILES[:2]:
        if found := find_file(name, repository, file):
            return found
    raise UserError(f"{name}: {repository} holds none of {', '.join(FILES[:2])}.")


def _loaded(name: str, known: Known, found: Weights, size: int | None) -> Any:
    """The network with its weights and the head that they came with; timm renames tensors and fits positions."""
    timm = load_library("timm", "timm", name)
    said = f"{known.config.get('classifier')}.weight"
    counts = [len(found.tensors[said])] if said in found.tensors else [int(known.config.get("num_classes", 0)), 0]
    reason = ""
    for count in dict.fromkeys(counts):  # with as many classes as the file has, so that nothing of it is left over
        config = {key: value for key, value in known.config.items() if key not in PLACES}
        config |= {"state_dict": found.tensors, "num_classes": count, "label_offset": None, "custom_load": False}
        try:
            network = timm.create_model(
                known.architecture, pretrained=True, pretrained_cfg=config, num_classes=count, **known.at(size)
            )
        except (RuntimeError, LookupError, TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()[-1].strip()
            continue
        network.pretrained_cfg = network.default_cfg = None  # it holds the tensors once more
        return network
    raise UserError(f"'{found.file}' does not hold the weights of {name} ({reason[:200]}).")


def _length(network: Any) -> int:
    """How many numbers its features are."""
    return int(getattr(network, "head_hidden_size", None) or network.num_features)
