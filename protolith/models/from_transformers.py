"""`hf:NAME[@REVISION]` or `hf:DIRECTORY`: networks of transformers, with the input that their own files say.

Features are what the library's own image classification head gets: its network is opened with that head, and the last
linear layer of the head is taken off. For ViT that is the normalised class token, for ConvNeXt and ResNet the pooled
maps, for DINOv2 the class token beside the mean of the others. The SHA-256 is that of the file of weights; where they
are in several, it is taken over all tensors in the order of their names.
"""

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from protolith.errors import UserError
from protolith.models.encoder import Backbone
from protolith.models.hub import find_file, load_library, misfit, read_json
from protolith.models.spec import InputSpec, at_size
from protolith.models.weights import Weights, digest_of, read_weights

PREFIX = "hf:"
CONFIG, PROCESSOR, WEIGHTS = "config.json", "preprocessor_config.json", ("model.safetensors", "pytorch_model.bin")
INDEX = "model.safetensors.index.json"
FILTERS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
ALONE = 384  # ConvNeXt's images of this size or more are squashed, smaller ones cropped


class TransformersEncoder(nn.Module):
    """An image classifier of transformers whose head's last linear layer is taken off."""

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        takes = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
        own = getattr(network.config, "image_size", size)
        self.options = {"interpolate_pos_encoding": True} if takes and own not in (size, [size, size]) else {}

    def features(self, images: Tensor) -> Tensor:
        """Encode images."""
        return cast(Tensor, self.network(pixel_values=images, **self.options).logits).flatten(1)


def input_of(name: str) -> InputSpec:
    """What a network wants to see, by the configuration of its image processor."""
    path = _file(name, PROCESSOR)
    if path is None:
        raise UserError(f"{name}: it has no {PROCESSOR}, so that nobody knows what images it wants.")
    try:
        return _spec(read_json(path))
    except (ValueError, LookupError, TypeError):
        raise UserError(f"{name}: images cannot be shown to it as its {PROCESSOR} wants them.") from None


def open_backbone(name: str, weights: str = "", size: int | None = None) -> Backbone:
    """Open a network with its weights: from a file, its folder, the hub's cache or the hub."""
    spec = at_size(input_of(name), size)
    config = _config(name)
    found = read_weights(Path(weights)) if weights else _weights(name)
    network, whole = _loaded(name, config, found)
    head = _take_head(name, network)
    tag = found.file.name if weights else _tag(name, found.file)
    encoder = TransformersEncoder(network, spec.size).eval()
    return Backbone(name, tag, found.sha256, spec, head.in_features, encoder, head if whole else None, config.to_dict())


def empty_backbone(name: str, size: int | None = None, said: Mapping[str, Any] | None = None) -> Backbone:
    """The same network with random weights, built from what a model's file says of it."""
    library = load_library("transformers", "transformers", name)
    if said is None:
        config, spec = _config(name), input_of(name)
    else:
        built, spec = dict(said["built"]), InputSpec.of(said["input"])
        config = library.AutoConfig.for_model(built.pop("model_type"), **built)
    with _quiet():
        _classifier_of(name, config)
        network = library.AutoModelForImageClassification.from_config(config).float()
    head, spec = _take_head(name, network), at_size(spec, size)
    encoder = TransformersEncoder(network, spec.size)
    return Backbone(name, "", "", spec, head.in_features, encoder, built=config.to_dict())


def _spec(said: Mapping[str, Any]) -> InputSpec:
    """Read an image processor's configuration: resize, then a crop of the middle where there is one."""
    crop = said["crop_size"] if said.get("do_center_crop") else None
    size, shorter = _side(said["size"])
    resize, share = ("crop" if shorter else "squash"), 1.0
    if crop is not None:
        size, share = _side(crop)[0], _side(crop)[0] / size
    elif shorter and "crop_pct" in said:  # ConvNeXt's
        resize, share = ("squash", 1.0) if size >= ALONE else ("crop", float(said["crop_pct"]))
    if not said.get("do_rescale", True) or not said.get("do_normalize", True):
        raise ValueError("it wants other numbers than pixels / 255, normalised")
    return InputSpec.of({
        "size": size, "mean": _colours(said["image_mean"]), "std": _colours(said["image_std"]), "resize": resize,
        "interpolation": FILTERS[said.get("resample", 2)], "share": share,
    })  # fmt: skip


def _side(size: Any) -> tuple[int, bool]:
    """The side of a square, and whether it is that of an image's shorter side."""
    if isinstance(size, int):
        return size, False
    if "shortest_edge" in size:
        return size["shortest_edge"], True
    if size["height"] != size["width"]:
        raise ValueError("its images are no squares")
    return size["height"], False


def _colours(values: Any) -> list[float]:
    return [float(value) for value in values]


def _file(name: str, file: str) -> Path | None:
    """A file of the network: of its folder, or of its repository."""
    plain = name.removeprefix(PREFIX)
    if (folder := Path(plain)).is_dir():
        return folder / file if (folder / file).is_file() else None
    if plain.count("/") > 1 or plain.startswith((".", "~", "/")):
        raise UserError(f"{name}: there is no such folder.")
    return find_file(name, plain, file)


def _config(name: str) -> Any:
    library = load_library("transformers", "transformers", name)
    if (path := _file(name, CONFIG)) is None:
        raise UserError(f"{name}: it has no {CONFIG}.")
    said = read_json(path)
    try:
        return library.AutoConfig.for_model(said.pop("model_type"), **said)
    except (LookupError, ValueError, TypeError):
        raise UserError(f"{name}: transformers knows no network such as its {CONFIG} describes.") from None


def _weights(name: str) -> Weights:
    """The weights in one file, or in several that an index names."""
    for file in WEIGHTS:
        if path := _file(name, file):
            return read_weights(path)
        if file == WEIGHTS[0] and (index := _file(name, INDEX)):
            return _sharded(name, index)
    raise UserError(f"{name}: it has no weights ({', '.join(WEIGHTS)}).")


def _sharded(name: str, index: Path) -> Weights:
    tensors: dict[str, Tensor] = {}
    for file in sorted(set(read_json(index).get("weight_map", {}).values())):
        if Path(file).name != file or (path := _file(name, file)) is None:
            raise UserError(f"{name}: '{file}', which its index names, is not there.")
        tensors |= read_weights(path).tensors
    return Weights(tensors, digest_of(tensors), index)


def _classifier_of(name: str, config: Any) -> Any:
    """The library's class for image classification with such a network."""
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING as KNOWN

    try:
        found = KNOWN[type(config)]
    except KeyError:
        raise UserError(f"{name}: transformers has no image classifier on a {config.model_type}.") from None
    return found[0] if isinstance(found, tuple | list) else found


def _loaded(name: str, config: Any, found: Weights) -> tuple[nn.Module, bool]:
    """The classifier with these weights, which transformers may rename, and whether its head is among them.

    A head that is missing, or tells other classes apart, does not matter; anything else is refused.
    """
    with _quiet():
        network, said = _classifier_of(name, config).from_pretrained(
            None, config=config, state_dict=dict(found.tensors), output_loading_info=True, ignore_mismatched_sizes=True
        )
    other = [str(key if isinstance(key, str) else key[0]) for key in (*said["missing_keys"], *said["mismatched_keys"])]
    if wrong := sorted(key for key in other if not key.startswith("classifier.")):
        raise UserError(f"'{found.file}' does not hold the weights of {name}: {len(wrong)} tensors differ, such as "
                        f"'{wrong[0]}'.")  # fmt: skip
    return network.float(), not other


def _take_head(name: str, network: nn.Module) -> nn.Linear:
    """Take off the head's last linear layer."""
    head = getattr(network, "classifier", None)
    place, last = "classifier", head
    if isinstance(head, nn.Sequential) and len(head):
        place, last = f"classifier.{len(head) - 1}", head[-1]
    if not isinstance(last, nn.Linear):
        raise UserError(f"{name}: the head of {type(network).__name__} is no linear layer that could be taken off.")
    network.set_submodule(place, nn.Identity())
    return last.eval()


def _tag(name: str, file: Path) -> str:
    """The folder's name, or the commit of the repository, which is the folder's name in the hub's cache."""
    return file.parent.name if Path(name.removeprefix(PREFIX)).is_dir() else file.parent.name[:12]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library's reports off the terminal: what they say becomes a sentence of ours."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except ModuleNotFoundError as error:  # it imports torchvision no sooner than a network is asked for
        cause: BaseException = error
        while cause.__cause__:
            cause = cause.__cause__
        raise misfit("transformers", cause) from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
