"""The decoded file: mapped, atomic, rebuilt when damaged, and its name tells what determines it."""

import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from protolith.data import cache
from protolith.data.domain import Domain, Split, Task
from protolith.data.sources.found import silent
from protolith.errors import UserError
from protolith.records import BadRecord

MARKS = {"a": "files:1", "b": "files:2"}


def make_task(count=20, size=8, notes=("a: a note",)):
    def split(seed):
        random = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (count, size, size, 3), dtype=torch.uint8, generator=random)
        return Split(images, torch.arange(count) % 2)

    domains = tuple(Domain(name, split(seed), split(seed + 1)) for seed, name in ((0, "a"), (2, "b*")))
    return Task("toy", ("x", "y"), domains, notes)


def same(one, two):
    assert (one.name, one.classes, one.notes) == (two.name, two.classes, two.notes)
    for left, right in zip(one.domains, two.domains, strict=True):
        assert left.name == right.name
        for part in ("train", "test"):
            assert torch.equal(getattr(left, part).images, getattr(right, part).images)
            assert torch.equal(getattr(left, part).labels, getattr(right, part).labels)


def test_what_is_written_is_read(tmp_path):
    path = cache.file_for(tmp_path / "new", "toy", 8, MARKS)
    task = cache.write(path, make_task(), MARKS)
    same(task, make_task())
    assert task.file == path
    header = cache.read_header(path)
    assert header.fingerprints == MARKS and header.domains == ("a", "b*")
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # nothing temporary is left


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_images_are_mapped_and_not_copied(tmp_path):
    path = cache.write(tmp_path / "big.safetensors", make_task(count=1000, size=64), MARKS).file
    code = (
        "import sys, re, pathlib; from protolith.data.tasks import read_task_file\n"
        "rss = lambda: int(re.search(r'VmRSS:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1]) // 1024\n"
        "before = rss(); task = read_task_file(pathlib.Path(sys.argv[1])); after = rss()\n"
        "mapped = sys.argv[1] in pathlib.Path('/proc/self/maps').read_text()\n"
        "print(mapped, after - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    mapped, grown = done.stdout.split()
    assert path.stat().st_size > 49e6
    assert mapped == "True" and int(grown) < 10  # megabytes


def test_the_name_depends_on_everything_that_determines_the_content(tmp_path, monkeypatch):
    names = {
        cache.file_for(tmp_path, "toy", 8, MARKS),
        cache.file_for(tmp_path, "toy", 16, MARKS),
        cache.file_for(tmp_path, "toy2", 8, MARKS),
        cache.file_for(tmp_path, "toy", 8, {**MARKS, "b": "files:3"}),
        cache.file_for(tmp_path, "toy", 8, dict(reversed(MARKS.items()))),
    }
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    names.add(cache.file_for(tmp_path, "toy", 8, MARKS))
    assert len(names) == 6
    assert all(path.name.startswith("toy") for path in names)
    assert cache.file_for(tmp_path, "../a b", 8, MARKS).parent == tmp_path


@pytest.mark.parametrize("damage", ["empty", "garbage", "cut", "foreign"])
def test_a_damaged_file_is_noticed_and_said(tmp_path, damage, caplog):
    path = cache.write(tmp_path / "toy-8px-1.safetensors", make_task(), MARKS).file
    content = path.read_bytes()
    if damage == "foreign":
        from safetensors.torch import save_file

        save_file({"weights": torch.zeros(3)}, path)
    else:
        path.write_bytes({"empty": b"", "garbage": b"\xff" * 5000, "cut": content[: len(content) // 2]}[damage])
    with pytest.raises(BadRecord):
        cache.read(path)
    said = []
    assert cache.read_if_good(path, said.append) is None
    assert said == [f"the decoded file '{path}' is damaged and is made anew"]
    with caplog.at_level(logging.WARNING):
        assert cache.read_if_good(path, silent) is None
    assert "is damaged and is made anew" in caplog.text
    assert list(cache.candidates(tmp_path, "toy", 8)) == []


def test_candidates_come_newest_first(tmp_path):
    for age, name in enumerate(("toy-8px-1", "toy-8px-2", "toy-16px-3", "toys-8px-4")):
        path = cache.write(tmp_path / f"{name}.safetensors", make_task(), MARKS).file
        os.utime(path, (1000 + age, 1000 + age))
    assert [path.stem for path, _ in cache.candidates(tmp_path, "toy", 8)] == ["toy-8px-2", "toy-8px-1"]
    assert list(cache.candidates(tmp_path / "nowhere", "toy", 8)) == []


def test_a_killed_writer_leaves_nothing_wrong(tmp_path):
    code = (
        "import os, sys, pathlib\n"
        "sys.path.insert(0, sys.argv[2]); import test_cache\n"
        "from protolith import records\n"
        "write = records.write\n"
        "def killed(*args, **options): write(*args, **options); os._exit(9)\n"
        "records.write = killed\n"
        "test_cache.cache.write(pathlib.Path(sys.argv[1]) / 'toy.safetensors', test_cache.make_task(), {})"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), here], check=False)
    assert done.returncode == 9
    (leftover,) = tmp_path.iterdir()
    assert leftover.name.startswith(".writing-")
    os.utime(leftover, (time.time() - 2 * cache.LEFTOVER_SECONDS,) * 2)
    same(cache.write(tmp_path / "toy.safetensors", make_task(), MARKS), make_task())
    assert [path.name for path in tmp_path.iterdir()] == ["toy.safetensors"]


def test_a_reader_keeps_its_images_when_the_file_is_replaced(tmp_path):
    task = cache.write(tmp_path / "toy.safetensors", make_task(), MARKS)
    cache.write(tmp_path / "toy.safetensors", make_task(count=3), MARKS)
    same(task, make_task())


def test_two_writers_at_once_are_fine(tmp_path):
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[2]); import test_cache as t\n"
        "for _ in range(5): t.same(t.cache.write(pathlib.Path(sys.argv[1]), t.make_task(), t.MARKS), t.make_task())"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path / "toy.safetensors"), str(Path(__file__).parent)]
    writers = [subprocess.Popen(arguments) for _ in range(2)]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.safetensors"]


def test_a_place_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(
        UserError, match=r"cannot be written to .* set PROTOLITH_CACHE to a folder that can be written\."
    ):
        cache.write(tmp_path / "file" / "toy.safetensors", make_task(), MARKS)


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOLITH_CACHE", str(tmp_path / "env"))
    assert cache.folder(tmp_path / "given") == tmp_path / "given"
    assert cache.folder() == tmp_path / "env"
    monkeypatch.delenv("PROTOLITH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    if sys.platform == "linux":
        assert cache.folder() == tmp_path / "xdg" / "protolith"
    assert cache.folder().name == "protolith"
