import os
from pathlib import Path

import pytest
import torch

from protolith import records
from protolith.records import BadRecord, Upload
from protolith.seeds import derive, generator


def example():
    return {"a": torch.arange(6.0).view(2, 3), "b/c": torch.tensor(3), "half": torch.zeros(0, 4)}


def test_round_trip(tmp_path):
    records.write(tmp_path / "r.safetensors", example(), about={"x": [1, "ü"]})
    record, about = records.read_with_about(tmp_path / "r.safetensors")
    assert about == {"x": [1, "ü"]} == records.read_about(tmp_path / "r.safetensors")
    assert record.keys() == example().keys()
    assert all(torch.equal(record[name], tensor) for name, tensor in example().items())


def test_the_same_record_gives_the_same_bytes(tmp_path):
    contents = set()
    for attempt in range(5):
        path = tmp_path / f"{attempt}.safetensors"
        records.write(path, example(), about={"one": 1, "two": 2, "three": 3, "four": 4})
        contents.add(path.read_bytes())
    assert len(contents) == 1


def test_writing_leaves_nothing_else_behind(tmp_path):
    records.write(tmp_path / "r.safetensors", example(), sync=True)
    assert [path.name for path in tmp_path.iterdir()] == ["r.safetensors"]


@pytest.mark.parametrize("keep", [0, 4, 20, 100])
def test_a_cut_file_is_a_bad_record(tmp_path, keep):
    path = tmp_path / "r.safetensors"
    records.write(path, example())
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(BadRecord, match=r"r\.safetensors"):
        records.read(path)


def test_a_missing_file_is_not_a_bad_record(tmp_path):
    with pytest.raises(FileNotFoundError):
        records.read(tmp_path / "none.safetensors")


def test_prefixes():
    record = {"own/a": torch.tensor(1), "own/b/c": torch.tensor(2), "owner": torch.tensor(3)}
    assert set(records.under_prefix("own", record)) == {"a", "b/c"}
    assert records.with_prefix("own", records.under_prefix("own", record)).keys() == {"own/a", "own/b/c"}


def test_bytes_are_those_of_the_tensors():
    upload = Upload(0, 5, {"w": torch.zeros(10)}, {"p": torch.zeros(2, 3, dtype=torch.int64)})
    assert upload.nbytes == 40 + 48
    assert upload.without_weights().nbytes == 48


def test_finite():
    assert records.is_finite({"a": torch.zeros(3), "n": torch.tensor(1)})
    assert not records.is_finite({"a": torch.tensor([0.0, float("nan")])})
    assert not records.is_finite({"a": torch.tensor([0.0, float("inf")])})


def test_seeds_depend_on_every_part():
    seeds = {derive(0, "a"), derive(0, "b"), derive(1, "a"), derive("0a"), derive(0, "a", 0), derive(0, "a", 1)}
    assert len(seeds) == 6
    assert derive(0, "a") == derive(0, "a")
    assert torch.equal(torch.rand(3, generator=generator(1, 2)), torch.rand(3, generator=generator(1, 2)))


def test_finite_means_every_number_also_where_the_sum_overflows():
    big = torch.full((4, 3), 3e38)
    assert records.all_finite(big) and records.all_finite(torch.zeros(0)) and records.all_finite(torch.arange(3))
    assert records.all_finite(torch.tensor([3e38, 3e38, -3e38]))
    for bad in (float("nan"), float("inf"), -float("inf")):
        spoilt = big.clone()
        spoilt[2, 1] = bad
        assert not records.all_finite(spoilt) and not records.is_finite({"a": big, "b": spoilt})
    assert not records.all_finite(torch.tensor([float("inf"), -float("inf")]))


@pytest.mark.parametrize("about", [None, {"b": [1, "ä"], "a": None}])
def test_the_library_reads_what_is_written_whatever_the_type_and_shape(tmp_path, about):
    from safetensors import safe_open

    rng = torch.Generator().manual_seed(0)
    shapes = [(), (0,), (3,), (2, 0, 4), (5, 3, 2), (4, 3, 3, 3)]
    record = {
        f'{str(kind)[6:]} {number} "ü\\': (100 * torch.rand(shape, generator=rng)).to(kind)
        for kind in records.TYPES
        for number, shape in enumerate(shapes)
    }
    record["last"] = torch.rand(4, 3, 3, 3, generator=rng).to(memory_format=torch.channels_last)
    record["turned"] = torch.rand(3, 4, generator=rng).T
    records.write(tmp_path / "a", record, about=about)
    records.write(tmp_path / "b", dict(reversed(record.items())), about=about)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with safe_open(str(tmp_path / "a"), framework="pt") as file:
        assert set(file.keys()) == set(record)
        assert list(records.read(tmp_path / "a")) == list(file.keys())  # in the order that it has always been
        for name, tensor in record.items():
            found = file.get_tensor(name)
            ours = records.read(tmp_path / "a")[name]
            assert ours.dtype == tensor.dtype and ours.shape == tensor.shape and torch.equal(ours, tensor)
            assert found.dtype == tensor.dtype and found.shape == tensor.shape and torch.equal(found, tensor)
    assert records.read_about(tmp_path / "a") == (about or {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def with_header(text, rest=b""):
    return len(text).to_bytes(8, "little") + text + rest


@pytest.mark.parametrize(
    "content",
    [
        (1 << 62).to_bytes(8, "little") + b"{}",
        with_header(b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}', b"1234"),
        with_header(b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}', b"x"),
        with_header(b'{"' + b"n" * 1001 + b'":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
        with_header(b'{"__metadata__":{"about":"[1]"},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    ],
)
def test_what_claims_too_much_is_a_bad_record(tmp_path, content):
    path = tmp_path / "r.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadRecord):
        records.read(path)
    if b"metadata" not in content:  # a message has no words about it
        with pytest.raises(BadRecord):
            records.from_bytes(content)


def test_a_long_header_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "r.safetensors"
    records.write(path, example())
    monkeypatch.setattr(records, "HEADER_BYTES", 10)
    with pytest.raises(BadRecord, match="and 10 are allowed"):
        records.read(path)
    with pytest.raises(BadRecord, match="and 10 are allowed"):
        records.from_bytes(path.read_bytes(), most=10)
    monkeypatch.setattr(records, "HEADER_BYTES", 1 << 20)
    monkeypatch.setattr(records, "ENTRIES", 2)
    with pytest.raises(BadRecord, match="3 tensors, and 2 are allowed"):
        records.read(path)


def test_a_pipe_is_no_record_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadRecord, match="not a regular file"):
        records.read(tmp_path / "pipe")


def test_bytes_there_and_back():
    found = records.from_bytes(records.to_bytes(example()))
    assert all(torch.equal(found[name], tensor) for name, tensor in example().items())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory is read from /proc")
def test_reading_again_and_again_takes_no_memory(tmp_path):
    """The library's own way to a tensor loses 64 bytes: here, 6 MB."""
    path = tmp_path / "r.safetensors"
    records.write(path, {str(number): torch.zeros(2) for number in range(100)})

    def megabytes():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    for _ in range(100):
        records.read(path)
    before = megabytes()
    for _ in range(1000):
        records.read(path)
    assert megabytes() - before < 2.0


def test_a_file_of_another_program_may_not_be_aligned(tmp_path):
    text = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]}}'
    content = torch.tensor([1.5, -2.0]).numpy().tobytes()
    (tmp_path / "r").write_bytes(with_header(text, b"\x07" + content))
    found = records.read(tmp_path / "r")
    assert found["a"].tolist() == [7] and found["b"].tolist() == [1.5, -2.0]


def test_tensors_side_by_side_are_one():
    block = torch.arange(12.0)
    parts = [block[0:2], block[2:8].view(2, 3), block[8:8], block[8:9].view(()), block[9:12]]
    joined = records.side_by_side(parts)
    assert joined is not None and torch.equal(joined, block) and joined.data_ptr() == block.data_ptr()
    assert records.side_by_side([]) is None
    assert records.side_by_side(parts[1:] + parts[:1]) is None
    assert records.side_by_side([block[0:2], block[3:4]]) is None  # a gap
    assert records.side_by_side([block[0:6].view(2, 3).T, block[6:]]) is None  # not row by row
    assert records.side_by_side([block[0:2], block[2:4].view(torch.int32)]) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_finite_side_by_side(bad):
    block = torch.full((12,), 3e38)  # the sum overflows
    record = {"a": block[:5], "n": torch.tensor(3), "b": block[5:]}
    assert records.is_finite(record)
    block[-1] = bad
    assert not records.is_finite(record)
