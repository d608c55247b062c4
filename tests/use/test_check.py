import json
import sys

import pytest
from site_helpers import write_sites

from protolith.cli.main import main
from protolith.use import timing
from protolith.use.check import check


def test_a_check_counts_finds_and_suggests(tmp_path, monkeypatch, capsys):
    root = write_sites(tmp_path / "sites", images=12)
    (root / "east" / "beam" / "broken.png").write_text("no")
    for index in range(4, 12):
        (root / "north" / "post" / f"{index:03}.png").unlink()
    monkeypatch.setattr(timing, "seconds_per_image", lambda *_: (0.01, 0.002))
    found = check(root)
    assert found.faults == () and found.suggestion is not None
    said = found.text()
    for words in (
        "64 images, 3 site(s), 2 class(es)",
        "train+test  beam",
        "32×32",
        "'east/beam/broken.png' cannot be read",
        "site 'north' has fewer than 10 images of: post (4)",
        "suggestion: strata, 32 pixels, width 16, batch 16, ",
        "measured: 10.0 ms of training for an image",
        f"  protolith run --task {root} --out runs/first --skip-bad\n",
        "  protolith predict runs/first FOLDER-OF-NEW-IMAGES",
    ):
        assert words in said, said
    monkeypatch.setattr(sys, "argv", ["protolith", "data", "check", str(root), "--json"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    plain = json.loads(capsys.readouterr().out)
    assert plain["sites"]["north"]["train"] == {"beam": 10, "post": 3} and len(plain["unreadable"]) == 1
    suggested = plain["suggestion"]
    assert (suggested["method"], suggested["size"], suggested["width"]) == ("strata", 32, 16)
    assert suggested["seconds"] > 0 and suggested["per_image"] == 0.01


def test_many_problems_of_one_kind_leave_the_suggestion_on_the_screen(tmp_path, monkeypatch):
    root = write_sites(tmp_path / "sites", images=12)
    for index in range(15):
        (root / "east" / "beam" / f"broken{index}.png").write_text("no")
    for index in range(12):
        (root / "west" / "post" / f"copy{index}.png").write_bytes((root / "west/beam" / f"{index:03}.png").read_bytes())
    monkeypatch.setattr(timing, "seconds_per_image", lambda *_: (0.01, 0.002))
    found = check(root)
    said = found.text()
    assert said.count("cannot be read") == 10 and "and 5 more unreadable files; --json lists all" in said
    assert said.count("one picture under several labels") == 10 and "and 2 more such pictures; --json lists all" in said
    assert len(found.plain()["unreadable"]) == 15 and len(found.plain()["relabelled"]) == 12


def test_what_cannot_be_trained_gets_no_suggestion(tmp_path):
    root = write_sites(tmp_path / "sites", images=1)
    found = check(root)
    assert found.suggestion is None and "a run is not possible" in found.text()


@pytest.mark.parametrize("content", ["broken", "avif"])
def test_a_check_of_images_that_cannot_be_read_exits_with_1(tmp_path, protolith, content):
    place = tmp_path / "sites" / "north" / "beam"
    place.mkdir(parents=True)
    (place / ("a.png" if content == "broken" else "a.avif")).write_bytes(b"no image")
    code, out, err = protolith("data", "check", tmp_path / "sites")
    assert code == 1 and "Traceback" not in err
    assert "site 'north' has no readable training image" in out if content == "broken" else ".avif 1" in err


def test_a_check_names_pictures_with_two_labels_types_that_are_not_read_and_alike_classes(tmp_path, monkeypatch):
    root = write_sites(tmp_path / "sites", images=12)
    (root / "east" / "beam" / "000.png").rename(root / "east" / "beam" / "one.png")
    (root / "north" / "post" / "copy.png").write_bytes((root / "east" / "beam" / "one.png").read_bytes())
    (root / "west" / "post" / "a.avif").write_bytes(b"x")
    (root / "west" / "beam").rename(root / "west" / "Beam")
    monkeypatch.setattr(timing, "seconds_per_image", lambda *_: (0.01, 0.002))
    said = check(root).text()
    assert "one picture under several labels: 'east/beam/one.png', 'north/post/copy.png'" in said
    assert "1 file of a type that is not read: .avif 1" in said
    assert "the classes 'Beam', 'beam' differ by capitals only" in said


def test_a_step_is_really_measured():
    train, test = timing.seconds_per_image(16, 4, 8, 2)
    assert 0 < test < 1 and 0 < train < 1
