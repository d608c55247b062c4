"""Killed, cut in half, a full disk, two at once, features that are no numbers: one sentence each, and nothing wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import encoding_helpers as h
import pytest

from protolith.encoding import Views, encode_task
from protolith.encoding.growing import FORGOTTEN_SECONDS
from protolith.errors import DiskRefused, UserError

PICTURES = 2 * (3 * 20 + 7)
pytestmark = pytest.mark.usefixtures("by_torch", "small_pieces")


def process(folder, what):
    return subprocess.Popen(
        [sys.executable, h.__file__, str(folder), what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def encoded(folder, network=None, said=None):
    progress = said.append if said is not None else None
    return encode_task(h.make_task(), h.tiny(network=network), views=Views(2), cache=folder, progress=progress)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The file that nothing happened to."""
    with pytest.MonkeyPatch.context() as patch:
        h.take_torch(patch.setattr)
        h.take_small_pieces(patch.setattr)
        return encoded(tmp_path_factory.mktemp("whole")).file


def names(folder):
    return sorted(file.name for file in (folder / "encoded").iterdir() if not file.name.endswith(".lock"))


def kill(folder):
    """Let a process die; what it leaves: the file that it was filling, and its journal."""
    dead = process(folder, "die")
    assert dead.wait(120) == -signal.SIGKILL, dead.stderr.read()
    journal, growing = sorted((folder / "encoded").glob(".*safetensors.[gj]*"), reverse=True)
    assert (journal.suffix, growing.suffix) == (".journal", ".growing")
    assert not list((folder / "encoded").glob("*.safetensors"))
    return growing, journal


@pytest.fixture(scope="module")
def died(tmp_path_factory):
    folder = tmp_path_factory.mktemp("died")
    kill(folder)
    return folder


@pytest.fixture
def killed(died, tmp_path):
    """A copy of what a killed process left in `tmp_path`."""
    shutil.copytree(died, tmp_path, dirs_exist_ok=True)
    return [next((tmp_path / "encoded").glob(f".*safetensors{ending}")) for ending in (".growing", ".journal")]


def test_a_killed_encoding_goes_on_where_it_was(tmp_path, killed, whole):
    network, said = h.Tiny(), []
    found = encoded(tmp_path, network, said)
    assert found.file.name == whole.name and found.file.read_bytes() == whole.read_bytes()
    assert 0 < network.seen <= PICTURES - 20
    assert "of them done before" in said[0] and f"{PICTURES} of {PICTURES} pictures" in said[-1]
    assert names(tmp_path) == [whole.name]


@pytest.mark.parametrize("damage", ["piece", "journal", "length", "header", "no journal"])
def test_what_a_killed_process_left_is_not_believed_blindly(tmp_path, killed, whole, damage):
    growing, journal = killed
    content, lines = growing.read_bytes(), journal.read_bytes()
    if damage == "piece":  # the first images' features
        place = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["0/train/images"]["data_offsets"][0]
        wrong, start = bytearray(content), 8 + int.from_bytes(content[:8], "little") + place
        assert wrong[start : start + 40] == whole.read_bytes()[start : start + 40]  # it was there
        wrong[start : start + 40] = b"?" * 40
        growing.write_bytes(wrong)
    elif damage == "journal":
        journal.write_bytes(lines[:-7])
    elif damage == "length":
        growing.write_bytes(content[: len(content) // 2])
    elif damage == "header":
        growing.write_bytes(content.replace(b"toy", b"tee", 1))
    else:
        journal.unlink()
    assert encoded(tmp_path).file.read_bytes() == whole.read_bytes()
    assert names(tmp_path) == [whole.name]


def test_it_can_be_killed_again_and_again(tmp_path, killed, whole):
    kill(tmp_path)
    network = h.Tiny()
    assert encoded(tmp_path, network).file.read_bytes() == whole.read_bytes()
    assert network.seen <= PICTURES - 40


def test_a_file_cut_in_half_is_made_anew(tmp_path, whole):
    path, said = encoded(tmp_path).file, []
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = encoded(tmp_path, said=said)
    assert said[0] == f"the file of features '{path}' is damaged and is made anew"
    assert found.file == path and path.read_bytes() == whole.read_bytes()


def test_a_disk_that_is_full_from_the_start_is_one_sentence(tmp_path):
    out, _ = process(tmp_path, "full").communicate(timeout=120)
    (line,) = [line for line in out.splitlines() if line.startswith("refused")]
    assert "the features of toy cannot be written (file too large" in line
    assert line.endswith("make room there, or set PROTOLITH_CACHE to a folder that can be written.")
    assert names(tmp_path) == []


def test_a_disk_that_fills_while_encoding_is_one_sentence_and_nothing_is_lost(tmp_path, whole):
    out, _ = process(tmp_path, "fill").communicate(timeout=120)
    assert "refused: the features of toy cannot be written (file too large" in out
    assert not list((tmp_path / "encoded").glob("*.safetensors"))
    network = h.Tiny()
    assert encoded(tmp_path, network).file.read_bytes() == whole.read_bytes()
    assert network.seen <= PICTURES - 20


def test_a_full_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs cannot be mounted here (it needs root)")
    try:
        with pytest.raises(DiskRefused, match=r"^the features of toy cannot be written \(no space left on device"):
            encode_task(h.make_task(400), h.tiny(), cache=folder)
        assert names(folder) == []
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DiskRefused, match=r"cannot be written \(.*set PROTOLITH_CACHE"):
        encoded(tmp_path / "file")


def test_of_two_at_once_the_second_waits_and_takes_the_firsts(tmp_path, whole):
    first = process(tmp_path, "wait")
    for _ in range(6000):
        if (tmp_path / "here").exists():
            break
        assert first.poll() is None, first.stderr.read()
        time.sleep(0.01)
    second = process(tmp_path, "count")
    said = second.stdout.readline()
    assert said == "another process is encoding the same images of toy: waiting for it\n"
    (tmp_path / "go").touch()
    out, _ = first.communicate(timeout=120)
    assert out.splitlines()[-1].startswith(whole.name)
    out, _ = second.communicate(timeout=120)
    assert out == f"{whole.name} 0\n"  # it has encoded no image
    assert (tmp_path / "encoded" / whole.name).read_bytes() == whole.read_bytes()


def test_features_that_are_no_numbers_are_one_sentence(tmp_path):
    network = h.Tiny()
    network.second.bias.data[1] = float("nan")
    with pytest.raises(
        UserError, match=r"^backbone tiny: its features of image 0 of a are not finite \(NaN or infinite"
    ):
        encoded(tmp_path, network)
    assert names(tmp_path) == []


def test_maps_too_large_for_float16_are_one_sentence(tmp_path):
    task, network = h.make_task(), h.Tiny()
    for domain in task.domains:
        for split in (domain.train, domain.test):
            split.images.clamp_(max=200)
    task.domains[1].train.images[5] = 255
    network.first.weight.data[:] = 0
    network.first.weight.data[0, 0, 0, 0] = 40_000  # a pixel of 255 is 2.25 deviations from the mean, one of 200 1.3
    with pytest.raises(UserError, match=r"its maps of image 5 of b\* are not finite"):
        encode_task(task, h.tiny(network=network), "maps", cache=tmp_path)
    assert names(tmp_path) == []


def test_what_nobody_went_on_with_is_removed(tmp_path, killed):
    growing, journal = killed
    for file in (growing, journal):
        os.utime(file, (time.time() - 2 * FORGOTTEN_SECONDS,) * 2)
    encode_task(h.make_task(seed=9), h.tiny(), cache=tmp_path)
    assert not growing.exists() and not journal.exists()
