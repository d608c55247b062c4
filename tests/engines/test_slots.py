"""Slots: what is put there is found there, by whoever reads the layout; and they are free again in time."""

import gc

import pytest
import torch

from protolith import records
from protolith.engines.slots import Slot, read_once


def example(seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = [(), (0,), (3,), (2, 0, 4), (5, 3, 2), (4, 3, 3, 3)]
    record = {
        f'{str(kind)[6:]} {number} "ü': (100 * torch.rand(shape, generator=rng)).to(kind)
        for kind in records.TYPES
        for number, shape in enumerate(shapes)
    }
    record["last"] = torch.rand(4, 3, 3, 3, generator=rng).to(memory_format=torch.channels_last)
    record["turned"] = torch.rand(3, 4, generator=rng).T
    return record


def assert_same(found, record):
    assert list(found) == list(record)
    for name, tensor in record.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        assert found[name].is_contiguous()


def test_another_reader_finds_every_type_and_shape(tmp_path):
    layout = Slot(tmp_path / "slot").layout(example())
    assert_same(Slot(tmp_path / "slot").get(layout), example())
    assert_same(read_once(tmp_path / "slot", layout, lambda: None), example())
    assert Slot(tmp_path / "slot").get(Slot(tmp_path / "slot").layout({})) == {}


def test_what_lies_in_the_slot_is_not_copied_again_also_when_it_grows(tmp_path):
    slot, weights = Slot(tmp_path / "slot"), example()
    there = slot.put(weights)
    there["last"] += 1.0
    large = torch.arange(100_000)  # mapped anew for it
    layout = slot.layout({**there, "large": large})
    end = slot._end
    assert_same(read_once(slot.path, layout, lambda: None), {**weights, "last": weights["last"] + 1.0, "large": large})
    slot.layout(slot.get(layout))
    assert slot._end <= end + 64  # nothing but the alignment


def test_a_slot_is_filled_again_by_several_with_records_of_any_size(tmp_path):
    writers = [Slot(tmp_path / "slot") for _ in range(2)]
    for number, size in enumerate([10, 5000, 3, 20_000, 7]):
        writer, record = writers[number % 2], {"a": torch.rand(size), "n": torch.tensor(number)}
        writer.clear()
        assert_same(read_once(writer.path, writer.layout(record), lambda: None), record)
    assert (tmp_path / "slot").stat().st_size < 100_000  # it begins anew each time


def test_the_slot_is_free_when_the_last_tensor_is_gone(tmp_path):
    layout, freed = Slot(tmp_path / "slot").layout(example()), []
    record = read_once(tmp_path / "slot", layout, lambda: freed.append(1))
    kept = record['float32 4 "ü'][1:]
    del record
    gc.collect()
    assert not freed
    assert torch.equal(kept, example()['float32 4 "ü'][1:])
    del kept
    assert freed == [1]


def test_a_full_disk_is_an_error(tmp_path, monkeypatch):
    import os

    def full(*given):
        raise OSError(28, "No space left on device")

    slot = Slot(tmp_path / "slot")
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space"):
        slot.put({"a": torch.zeros(10_000)})
