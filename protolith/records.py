"""Records: named tensors, the only thing that crosses a boundary (process, network or disk)."""

import errno
import json
import math
import mmap
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from protolith import files

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
KINDS = {name: kind for kind, name in TYPES.items()}
FORMAT = 1  # a later version that writes records in another way says so in their metadata; this one writes no number
HEADER_BYTES = 64 << 20  # of a file: names and shapes of a million tensors
MESSAGE_HEADER_BYTES = 4 << 20  # of a record in a message
ENTRIES = 1_000_000
NAME_LENGTH = 1000
# What the library raises for content that is no record.
FAULTS = (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError, OverflowError, MemoryError)


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
    path: Path, record: Mapping[str, Tensor], *, about: Mapping[str, object] | None = None, sync: bool = False
) -> None:
    """Write a record as safetensors: complete under its name, or not there at all.

    Straight from the tensors' memory (the library copies them twice), and the same record gives the same bytes.
    """
    plain = [(name, tensor.detach().cpu().contiguous()) for name, tensor in _ordered(record)]
    with files.writing(path, sync=sync) as file:
        files.write_all(file, _header(plain, about))
        for _, tensor in plain:
            files.write_all(file, memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data))


def outline(
    record: Mapping[str, Tensor], about: Mapping[str, object] | None = None
) -> tuple[bytes, dict[str, int], int]:
    """The beginning of a record's file, where each tensor begins in it, and how long it is; no number is looked at.

    For a file that is filled piece by piece: tensors on the `meta` device will do.
    """
    ordered = _ordered(record)
    header = _header(ordered, about)
    places, end = {}, len(header)
    for name, tensor in ordered:
        places[name], end = end, end + tensor.nbytes
    return header, places, end


def _ordered(record: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    # The largest elements first, so that every tensor is aligned when the file is mapped.
    return sorted(record.items(), key=lambda item: (-item[1].element_size(), item[0]))


def _header(tensors: list[tuple[str, Tensor]], about: Mapping[str, object] | None) -> bytes:
    """The beginning of a safetensors file: the length of a JSON text, and the text, padded to whole words."""
    entries: dict[str, object] = {"__metadata__": {"about": json.dumps(about, sort_keys=True)}} if about else {}
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
        return _mapped(path, _within(list(file.keys()))), _about(file, path)


def read_about(path: Path) -> dict[str, Any]:
    """Read what was written about a record, without its tensors."""
    with _opened(path) as file:
        return _about(file, path)


def from_bytes(content: bytes, most: int = MESSAGE_HEADER_BYTES) -> Record:
    """Read a record that came as bytes; whatever is wrong with it is a BadRecord."""
    try:
        _check_length(content[:8], len(content), most)
        record = load(content)
        return {name: _known(name, record[name]) for name in _within(list(record))}
    except FAULTS as error:
        raise BadRecord(f"not a record: {_first_words(error)}") from None


def to_bytes(record: Mapping[str, Tensor]) -> bytes:
    """Write a record as bytes, for a message."""
    return save({name: tensor.detach().cpu().contiguous() for name, tensor in record.items()})


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file with a record. That the file cannot be opened is an OSError; what is wrong inside, a BadRecord."""
    if not path.is_file():  # a named pipe would be waited for
        if path.exists():
            raise BadRecord(f"{path}: not a regular file")
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
    with path.open("rb") as raw:
        size = os.fstat(raw.fileno()).st_size
        try:
            _check_length(raw.read(8), size, HEADER_BYTES)
        except ValueError as error:
            raise BadRecord(f"{path}: {error}") from None
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except FAULTS as error:
        raise BadRecord(f"{path}: {_first_words(error)}") from error


def _check_length(start: bytes, size: int, most: int) -> None:
    """Look at the length of the header before anything of it is read."""
    if len(start) < 8:
        raise ValueError(f"{size} bytes are too few for a record")
    length = int(struct.unpack("<Q", start)[0])
    if length > size - 8:
        raise ValueError(f"its header claims {length:,} bytes, and the whole has {size:,}")
    if length > most:
        raise ValueError(f"its header has {length:,} bytes, and {most:,} are allowed")


def _mapped(path: Path, names: list[str]) -> Record:
    """Map the tensors of a file that the library has found to be in order.

    Its own `get_tensor` loses 64 bytes a call (0.8.0), which is 200 MB for 2,000 clients in 20 rounds.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    start = 8 + int(struct.unpack("<Q", mapped[:8])[0])
    entries = json.loads(mapped[8:start])
    return {name: _tensor(mapped, start, name, entries[name]) for name in names}


def _tensor(mapped: mmap.mmap, start: int, name: str, entry: dict[str, Any]) -> Tensor:
    kind = KINDS.get(entry["dtype"])
    if kind is None:
        raise ValueError(f"'{name}' is of type {entry['dtype']}, which no record has")
    first, count = start + entry["data_offsets"][0], math.prod(entry["shape"])
    if count == 0:
        return torch.empty(entry["shape"], dtype=kind)
    if first % kind.itemsize:  # other programs' files may not be aligned
        piece = bytearray(mapped[first : first + count * kind.itemsize])
        return torch.frombuffer(piece, dtype=kind).view(entry["shape"])
    return torch.frombuffer(mapped, dtype=kind, count=count, offset=first).view(entry["shape"])


def _within(names: list[str]) -> list[str]:
    if len(names) > ENTRIES:
        raise ValueError(f"it has {len(names):,} tensors, and {ENTRIES:,} are allowed")
    if longest := next((name for name in names if len(name) > NAME_LENGTH), None):
        raise ValueError(f"a name has {len(longest):,} letters, and {NAME_LENGTH:,} are allowed")
    return names


def _known(name: str, tensor: Tensor) -> Tensor:
    if tensor.dtype not in TYPES:
        raise ValueError(f"'{name}' is of type {tensor.dtype}, which no record has")
    return tensor


def _about(file: Any, path: Path) -> dict[str, Any]:
    metadata = file.metadata() or {}
    written = metadata.get("format", "1")
    if problem := files.newer(path, int(written) if written.isdecimal() and len(written) < 9 else written, FORMAT):
        raise problem
    about = files.parse_json(metadata.get("about", "{}"))
    if not isinstance(about, dict):
        raise ValueError("what it says about itself is not a JSON object")
    return about


def _first_words(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


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
    # Of the client's own model, where that is tested: test set -> measure -> counts (evaluation/measures.py).
    counts: dict[str, dict[str, Record]] = field(default_factory=dict)
    counts_as: float | None = None  # its weight in the mean of models, where a layer of the server says so; never sent

    @property
    def nbytes(self) -> int:
        """Bytes on the wire, without framing."""
        return nbytes(self.weights) + nbytes(self.knowledge)

    def with_knowledge(self, **tensors: Tensor) -> "Upload":
        """Return this upload with more knowledge."""
        return replace(self, knowledge={**self.knowledge, **tensors})

    def without_weights(self) -> "Upload":
        """Return this upload without its weights: what a streaming aggregation keeps of it."""
        return replace(self, weights={})


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
