"""Records: named tensors, the only thing that crosses a boundary (process, network or disk)."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

Record = dict[str, Tensor]
TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class BadRecord(Exception):
    """A file that should hold a record does not."""


def nbytes(record: Mapping[str, Tensor]) -> int:
    """Count the bytes of the tensors of a record."""
    return sum(tensor.nbytes for tensor in record.values())


def clone(record: Mapping[str, Tensor]) -> Record:
    """Copy a record, detached, on the CPU, row by row (as it is written)."""
    plain = torch.contiguous_format
    return {name: tensor.detach().to("cpu", copy=True, memory_format=plain) for name, tensor in record.items()}


def with_prefix(prefix: str, record: Mapping[str, Tensor]) -> Record:
    """Put `prefix/` before every name."""
    return {f"{prefix}/{name}": tensor for name, tensor in record.items()}


def under_prefix(prefix: str, record: Mapping[str, Tensor]) -> Record:
    """Take the entries whose name starts with `prefix/`, without it."""
    start = f"{prefix}/"
    return {name[len(start) :]: tensor for name, tensor in record.items() if name.startswith(start)}


def write(
    path: Path, record: Mapping[str, Tensor], *, about: Mapping[str, Any] | None = None, sync: bool = False
) -> None:
    """Write a record as safetensors: complete under its name, or not there at all.

    Straight from the tensors' memory (the library copies them twice), and the same record gives the same bytes.
    """
    # The largest elements first, so that every tensor is aligned when the file is mapped.
    ordered = sorted(record.items(), key=lambda item: (-item[1].element_size(), item[0]))
    plain = [(name, tensor.detach().cpu().contiguous()) for name, tensor in ordered]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb", buffering=0) as file:
        file.write(_header(plain, about))
        for _, tensor in plain:
            left = memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data)
            while left:
                left = left[file.write(left) :]
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)


def _header(tensors: list[tuple[str, Tensor]], about: Mapping[str, Any] | None) -> bytes:
    """The beginning of a safetensors file: the length of a JSON text, and the text, padded to whole words."""
    entries: dict[str, Any] = {"__metadata__": {"about": json.dumps(about, sort_keys=True)}} if about else {}
    start = 0
    for name, tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        entries[name] = {"dtype": TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def read(path: Path) -> Record:
    """Read a record; the tensors are mapped from the file, not copied, where the platform allows."""
    return read_with_about(path)[0]


def read_with_about(path: Path) -> tuple[Record, dict[str, Any]]:
    """Read a record and what was written about it."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _about(file)  # noqa: SIM118


def read_about(path: Path) -> dict[str, Any]:
    """Read what was written about a record, without its tensors."""
    with _opened(path) as file:
        return _about(file)


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise BadRecord(f"{path}: {error}") from error


def _about(file: Any) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((file.metadata() or {}).get("about", "{}"))
    return about


@dataclass(frozen=True)
class Broadcast:
    """What the server sends one client."""

    weights: Record
    knowledge: Record = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without framing."""
        return nbytes(self.weights) + nbytes(self.knowledge)


@dataclass(frozen=True)
class Upload:
    """What a client sends back."""

    client: int
    count: int
    weights: Record = field(default_factory=dict)
    knowledge: Record = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without framing."""
        return nbytes(self.weights) + nbytes(self.knowledge)

    def with_knowledge(self, **tensors: Tensor) -> "Upload":
        """Return this upload with more knowledge."""
        return Upload(self.client, self.count, self.weights, {**self.knowledge, **tensors}, self.metrics)

    def without_weights(self) -> "Upload":
        """Return this upload without its weights: what a streaming aggregation keeps of it."""
        return Upload(self.client, self.count, {}, self.knowledge, self.metrics)


def is_finite(record: Mapping[str, Tensor]) -> bool:
    """Tell whether every number of a record is finite."""
    floats = [tensor for tensor in record.values() if tensor.is_floating_point()]
    joined = side_by_side(floats)
    return all(map(all_finite, floats)) if joined is None else all_finite(joined)


def side_by_side(tensors: Sequence[Tensor]) -> Tensor | None:
    """One tensor over the numbers of several that lie one after another in memory, if they do; nothing is copied."""
    tensors = [tensor for tensor in tensors if tensor.numel()]  # the others lie nowhere
    if not tensors:
        return None
    first = tensors[0]
    end = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != end or tensor.dtype != first.dtype or not tensor.is_contiguous():
            return None
        end += tensor.nbytes
    length, storage = end - first.data_ptr(), first.untyped_storage()
    if end > storage.data_ptr() + storage.nbytes():
        return None
    return first.detach().as_strided((length // first.element_size(),), (1,))


def all_finite(tensor: Tensor) -> bool:
    """Tell whether every number of a tensor is finite.

    A finite sum says so at a quarter of the cost; an infinite one may have overflowed, so then each number is asked.
    """
    if not tensor.is_floating_point():
        return True
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())
