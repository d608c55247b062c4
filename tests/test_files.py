"""Files are whole or absent, bounded, and inside their folder."""

import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolith import files
from protolith.errors import UserError


def test_a_file_that_fails_leaves_nothing_and_keeps_the_one_before(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "before")
    with pytest.raises(OSError, match="full") as caught, files.writing(path) as file:
        file.write(b"half")
        raise OSError(28, "disk full")
    assert caught.value.filename == str(path)
    assert path.read_text() == "before" and [found.name for found in tmp_path.iterdir()] == ["a.txt"]


def test_parts_of_dead_processes_are_removed_and_others_stay(tmp_path):
    gone = _dead_pid()
    names = [f".a.txt.{gone}.part", f".b.txt.{os.getpid()}.part", ".c.txt.x.part", f"d.{gone}.part", f".e.txt.{gone}"]
    for name in names:
        (tmp_path / name).write_text("")
    files.remove_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])


def test_parts_of_one_name_only(tmp_path):
    gone = _dead_pid()
    for name in ("r[1].html", "other.html"):
        (tmp_path / f".{name}.{gone}.part").write_text("")
    files.remove_parts(tmp_path, "r[1].html")
    assert [path.name for path in tmp_path.iterdir()] == [f".other.html.{gone}.part"]


def _dead_pid() -> int:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def test_sizes_are_looked_at_first(tmp_path):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a hole: it takes no room, and would take a terabyte of memory
    with pytest.raises(ValueError, match="1,099,511,627,776 bytes, and 10 are allowed"):
        files.read_bytes(path, 10)


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    found = []

    def read():
        with pytest.raises(ValueError, match="not a regular file"):
            files.read_text(tmp_path / "pipe")
        found.append(True)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(5)
    assert found == [True]


@given(st.text(min_size=1, max_size=400))
def test_a_name_is_one_component_and_no_two_become_one(words):
    name = files.file_name(words)
    path = Path("/models") / f"{name}.safetensors"
    assert path.parent == Path("/models") and ".." not in path.parts
    assert len(os.fsencode(path.name)) < 200 and "\x00" not in name
    assert name != files.file_name(words + "/") and name != files.file_name("/" + words)


@pytest.mark.parametrize("words", ["pen-1", "syn*-2", "hôpital du Léman-1", "a b.c-1"])
def test_plain_names_stay(words):
    assert files.file_name(words) == words


def test_names_that_lead_elsewhere_do_not():
    assert files.file_name("../../x") == "%2E.%2F..%2Fx" and files.file_name("..") == "%2E."
    assert files.file_name("a/b") != files.file_name("a%2Fb")


def test_deep_json_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="nested too deeply"):
        files.parse_json("[" * 100_000)
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="JSON object"):
        files.read_json(tmp_path / "a.json")


@pytest.mark.parametrize("found", [2, 0, -1, "1", None, True, 1.0, [1]])
def test_an_unknown_format_is_refused(found):
    problem = files.newer("x.json", found, 1)
    assert isinstance(problem, UserError) and "newer version" in str(problem)
    assert files.newer("x.json", 1, 1) is None
