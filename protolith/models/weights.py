"""Files of weights from outside: where they are, what their SHA-256 is, and what is in them.

The only file of the package that opens what PyTorch pickled, and it does so with `weights_only`, which builds tensors
and runs nothing else.
"""

import hashlib
import importlib.util
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from protolith import records
from protolith.errors import UserError


@dataclass(frozen=True)
class Weights:
    """Named tensors from a file, and the SHA-256 of its bytes."""

    tensors: dict[str, Tensor]
    sha256: str
    file: Path


def packaged(package: str, file: str) -> Path | None:
    """The path of a file of an installed package, whose code is not run; None where it is not there."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / file).is_file():
            return path
    return None


def read_weights(path: Path, expected: str = "") -> Weights:
    """Read a file of weights (.safetensors, or PyTorch's own), first comparing its SHA-256 where one is known."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"the weights '{path}' cannot be read ({error.strerror or error}).") from None
    digest = hashlib.sha256(content).hexdigest()
    if expected and digest != expected:
        raise UserError(
            f"'{path}' holds other weights than expected: SHA-256 {digest[:16]}…, not {expected[:16]}…; install the "
            "package again, or name your own file with --weights."
        )
    opened = _safe if path.suffix == ".safetensors" else _unpickled
    tensors = _plain(path, opened(path, content))
    if not records.is_finite(tensors):
        raise UserError(f"the weights '{path}' hold numbers that are not finite (NaN or infinite).")
    return Weights(tensors, digest, path)


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """The SHA-256 of tensors in the order of their names: name, type, shape and bytes of each."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _safe(path: Path, content: bytes) -> object:
    try:
        return safetensors.torch.load(content)
    except records.FAULTS:
        raise UserError(f"the weights '{path}' are no safetensors file.") from None


def _unpickled(path: Path, content: bytes) -> object:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file makes it raise nearly anything
        raise UserError(f"the weights '{path}' are no file of tensors ({type(error).__name__}).") from None


def _plain(path: Path, found: object) -> dict[str, Tensor]:
    """Named tensors; some files keep them one level down."""
    for level in ("state_dict", "model"):
        if isinstance(found, dict) and isinstance(inner := found.get(level), dict):
            found = inner
    if not isinstance(found, dict) or not found or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError(f"the weights '{path}' are no table of named tensors.")
    return {str(name): tensor for name, tensor in found.items()}
