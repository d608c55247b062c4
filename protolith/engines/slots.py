"""Slots: files in the spool that are filled again and again, so that a record costs one copy and no new pages.

A slot holds tensors one after another, each in the order of its rows. Where they lie is said beside it, in a text (the
layout), which stays the same from round to round and is therefore read once.
"""

import json
import mmap
import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from protolith.records import TYPES, Record

ALIGNED = 64  # bytes: where records begin
PAGE = 4096
BY_NAME = {name: dtype for dtype, name in TYPES.items()}


class Place(NamedTuple):
    """Where a tensor lies: the last two in numbers, not bytes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int


class Slot:
    """A file mapped into this process. Whoever fills it clears it first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0
        self._map(0)

    def clear(self) -> None:
        """Begin anew: what was there is overwritten by what is put there next."""
        self._end = 0

    def put(self, record: Mapping[str, Tensor]) -> Record:
        """Copy a record behind what is there; the tensors that are returned lie in the slot."""
        kinds = tuple((name, tensor.dtype, tuple(tensor.shape)) for name, tensor in record.items())
        places, self._end = _plan(kinds, -(-self._end // ALIGNED) * ALIGNED)
        self._reach(self._end)
        found = self._views(places)
        for name, tensor in record.items():
            found[name].copy_(tensor.detach())
        return {name: found[name] for name in record}  # in the order of the record, not of the slot

    def layout(self, record: Mapping[str, Tensor]) -> str:
        """Say where the tensors of a record lie; those that are not in the slot yet are put there."""
        begin = self._memory.data_ptr()
        starts = {name: t.data_ptr() - begin for name, t in record.items() if self._holds(t)}
        here = self.put({name: tensor for name, tensor in record.items() if name not in starts})
        begin = self._memory.data_ptr()  # the slot may have grown, and then it is mapped anew
        starts |= {name: t.data_ptr() - begin if t.numel() else 0 for name, t in here.items()}
        return json.dumps([(name, TYPES[t.dtype], list(t.shape), starts[name]) for name, t in record.items()])

    def get(self, layout: str) -> Record:
        """The tensors that lie there, not copied: they change when the slot is filled anew."""
        places, end = _parse(layout)
        self._reach(end)
        return self._views(places)

    def _views(self, places: tuple[Place, ...]) -> Record:
        return {
            place.name: self._typed[place.dtype].as_strided(place.shape, place.strides, place.start) for place in places
        }

    def _holds(self, tensor: Tensor) -> bool:
        if tensor.device.type != "cpu" or not tensor.numel() or not tensor.is_contiguous():
            return False
        return 0 <= tensor.data_ptr() - self._memory.data_ptr() < len(self._memory)

    def _reach(self, size: int) -> None:
        """See to it that so many bytes are there and mapped."""
        if size > len(self._memory):
            self._map(size)

    def _map(self, size: int) -> None:
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            there, size = os.fstat(file.fileno()).st_size, max(PAGE, -(-size // PAGE) * PAGE)
            if size > there:
                _lengthen(file.fileno(), size)
            self.mapping = mmap.mmap(file.fileno(), max(size, there))
        self._memory = torch.frombuffer(self.mapping, dtype=torch.uint8)
        self._typed = {dtype: self._memory.view(dtype) for dtype in TYPES}


def read_once(path: Path, layout: str, done: Callable[[], object]) -> Record:
    """The tensors in a slot, not copied; `done` is called when nobody holds any of them any more."""
    slot = Slot(path)
    finalize(slot.mapping, done).atexit = False
    return slot.get(layout)


def _lengthen(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):  # a full disk is then an error, and not the death of who writes
        os.posix_fallocate(file, 0, size)
    else:
        os.ftruncate(file, size)


@lru_cache(64)
def _plan(kinds: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...], start: int) -> tuple[tuple[Place, ...], int]:
    """Lay tensors one after another, the largest elements first, so that each is aligned."""
    places = []
    for name, dtype, shape in sorted(kinds, key=lambda kind: -kind[1].itemsize):
        place = _place(name, dtype, shape, start)
        places.append(place)
        start = _stop(place)
    return tuple(places), start


@lru_cache(64)
def _parse(layout: str) -> tuple[tuple[Place, ...], int]:
    """Read a layout: the places, and where the last of them ends."""
    places = tuple(_place(name, BY_NAME[kind], shape, start) for name, kind, shape, start in json.loads(layout))
    return places, max(map(_stop, places), default=0)


def _place(name: str, dtype: torch.dtype, shape: "tuple[int, ...] | list[int]", start: int) -> Place:
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    return Place(name, dtype, tuple(shape), tuple(reversed(strides)), start // dtype.itemsize)


def _stop(place: Place) -> int:
    count = 1
    for length in place.shape:
        count *= length
    return (place.start + count) * place.dtype.itemsize
