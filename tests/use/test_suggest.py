"""Settings for images of one's own: from the data alone, at the price of some headers."""

import os

import pytest
from PIL import Image, ImageFile
from site_helpers import write_sites

from protolith.data.own import divided, list_own, read_own
from protolith.data.sources import decode
from protolith.data.sources.found import silent
from protolith.use import suggest
from protolith.use.suggest import Amounts, amounts_of, nominal_per_image, nominal_seconds

PHOTOGRAPHS = Amounts([1640, 1876, 1336, 3138], 2001, 112, 7)  # as many, and as large, as PACS has here


def scratch(amounts, budget=suggest.BUDGET):
    return suggest.suggest(amounts, budget, suggest.SCRATCH)


def test_four_sites_of_photographs_get_64_pixels_and_a_run_of_an_hour_at_most():
    found = scratch(PHOTOGRAPHS)
    assert (found.method, found.size, found.width, found.batch) == ("strata", 64, 16, 16)
    assert (found.rounds, found.epochs) == (20, 5)
    assert nominal_seconds(found, PHOTOGRAPHS) <= suggest.BUDGET


def test_settings_shrink_until_they_fit_and_passes_go_before_the_last_pixels():
    amounts = Amounts([400, 1000], 200, 224, 5)
    large, small = (scratch(amounts, budget) for budget in (1e9, 300))
    assert (large.size, large.width, large.batch) == (128, 16, 16)
    assert small.size < large.size and nominal_seconds(small, amounts) <= 300
    none = scratch(amounts, 0)
    assert (none.size, none.width, none.epochs, none.rounds) == (32, 8, 1, 10)
    assert scratch(Amounts([10], 2, 20, 2), 1e9).size == 32
    tiny_site = scratch(Amounts([10, 4_000, 4_000, 4_000], 3_000, 112, 7))
    assert (tiny_site.size, tiny_site.rounds) == (64, 20) and tiny_site.epochs > 1
    many = scratch(Amounts([20_000] * 4, 20_000, 300, 7))
    assert many.size == 64 and many.epochs == 1


def test_every_amount_gets_a_suggestion_that_fits_wherever_one_does():
    for images in (1, 40, 300, 3_000, 30_000):
        for sites in (1, 4, 40):
            for side in (2, 32, 100, 4_000):
                amounts = Amounts([images] * sites, sites * images // 4, side, 5)
                found, least = scratch(amounts), scratch(amounts, 0)
                assert nominal_seconds(found, amounts) <= max(suggest.BUDGET, nominal_seconds(least, amounts))
                assert found.size <= max(side, 32) and found.rounds <= 100


@pytest.mark.parametrize(
    ("size", "width", "milliseconds"), [(32, 16, 2.5), (64, 16, 7.6), (64, 32, 20.9), (128, 16, 27.0), (32, 32, 6.3)]
)
def test_the_nominal_time_is_near_what_was_measured(size, width, milliseconds):
    assert 1000 * nominal_per_image(size, width) == pytest.approx(milliseconds, rel=0.12)


def test_the_words_leave_out_what_is_named():
    found = suggest.Suggestion("strata", 64, 16, 32, 20, 5)
    assert found.words() == "strata, 64 pixels, width 16, batch 32, 20 rounds of 5 epochs"
    assert found.words(["method", "epochs"]) == "64 pixels, width 16, batch 32, 20 rounds"
    assert found.words(["rounds", "width", "batch"]) == "strata, 64 pixels, 5 epochs"


# What it costs to find out


def test_the_amounts_are_those_that_decoding_finds(tmp_path):
    root = write_sites(tmp_path / "sites", images=13)
    (root / "north" / "train").mkdir()
    for name in ("beam", "post"):
        (root / "north" / name).rename(root / "north" / "train" / name)
    (root / "north" / "test").mkdir()
    (root / "north" / "train" / "post").rename(root / "north" / "test" / "post")
    found = list_own(root)
    read = read_own(found, 8, silent)
    assert [divided(found, site) for site in found.domains] == [(len(d.train), len(d.test)) for d in read.domains]
    amounts = amounts_of(found)
    assert amounts == Amounts([len(d.train) for d in read.domains], sum(len(d.test) for d in read.domains), 32, 2)


def test_headers_of_some_files_are_read_and_no_image_is_decoded(tmp_path, monkeypatch):
    opened, open_ = [], decode._open
    place = tmp_path / "sites" / "north" / "beam"
    place.mkdir(parents=True)
    Image.new("RGB", (90, 70)).save(place / "0000.png")
    for index in range(1, 1001):
        os.link(place / "0000.png", place / f"{index:04}.png")

    def counted(picture):
        opened.append(picture.name)
        return open_(picture)

    def never(*_):
        raise AssertionError("decoded")

    monkeypatch.setattr(decode, "_open", counted)
    monkeypatch.setattr(ImageFile.ImageFile, "load", never)
    amounts = amounts_of(list_own(tmp_path / "sites"))
    assert amounts.side == 70 and amounts.train == [801]
    assert 150 <= len(opened) <= suggest.SAMPLED
    assert sum(name < "0500" for name in opened) == pytest.approx(len(opened) / 2, abs=1)  # from the whole of it
    monkeypatch.setattr(suggest, "SAMPLED_IN_ALL", 10)
    opened.clear()
    amounts_of(list_own(tmp_path / "sites"))
    assert 5 <= len(opened) <= 10


def test_files_that_cannot_be_opened_have_no_say(tmp_path):
    root = write_sites(tmp_path / "sites", images=3)
    for file in root.glob("*/beam/*.png"):
        file.write_text("no image")
    assert amounts_of(list_own(root)).side == 32
    for file in root.glob("*/post/*.png"):
        file.write_bytes(b"")
    assert suggest.suggest(amounts_of(list_own(root))).size == 32
