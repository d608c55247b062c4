"""The manifest reader: what it reads, and that it answers anything else with one sentence."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_own import picture

from protolith.data.sources.inventory import settled
from protolith.data.sources.manifest import read_manifest
from protolith.data.tasks import load_task
from protolith.errors import UserError

QUIET = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def manifest(folder, rows, header=("path", "label", "site"), name="list.csv"):
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([header, *rows])
    (folder / name).write_bytes(buffer.getvalue().encode("utf-8", "surrogatepass"))
    return folder / name


def refused(path):
    with pytest.raises(UserError) as caught:
        read_manifest(path)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.encode()
    return sentence


def test_a_manifest_is_a_task(tmp_path):
    (tmp_path / "all").mkdir()
    rows = []
    for site in ("a", "b"):
        for index in range(20):
            picture(100 * ord(site) + index).save(tmp_path / "all" / f"{site}{index}.png")
            rows.append([f"all/{site}{index}.png", "cat" if index % 2 else "dog", site])
    task = load_task(str(manifest(tmp_path, rows)), cache=tmp_path / "cache", size=16)
    assert task.name == "list" and task.classes == ("cat", "dog")
    assert [len(domain.test) for domain in task.domains] == [4, 4]
    parts = [[*row, "train" if place % 4 else "Test"] for place, row in enumerate(rows)]
    task = load_task(
        str(manifest(tmp_path, parts, ("path", "label", "site", "split"))), cache=tmp_path / "cache", size=16
    )
    assert [len(domain.test) for domain in task.domains] == [5, 5]
    columns = dict(zip(("path", "label", "site", "split"), zip(*parts, strict=True), strict=True))
    pq.write_table(pa.table({name: list(cells) for name, cells in columns.items()}), tmp_path / "list.parquet")
    same = read_manifest(tmp_path / "list.parquet")
    assert same.rows == read_manifest(tmp_path / "list.csv").rows


def test_a_missing_file_is_a_bad_image(tmp_path):
    rows = []
    for index in range(12):
        picture(index).save(tmp_path / f"{index}.png")
        rows.append([f"{index}.png", str(index % 2), "a"])
    path = manifest(tmp_path, [*rows, ["none.png", "0", "a"]])
    with pytest.raises(UserError, match=r"1 of 13 images cannot be used, .* 'none.png' cannot be read \(no such"):
        load_task(str(path), cache=tmp_path / "cache")
    assert len(load_task(str(path), cache=tmp_path / "cache", skip_bad=True).domains) == 1


@pytest.mark.parametrize(
    ("rows", "header", "sentence"),
    [
        ([], ("path", "label", "site"), "lists no image"),
        ([["a.png", "x"]], ("path", "label"), "has no column site: it needs path, label, site"),
        ([["a.png", "x", "s"]], ("path", "label", "path"), "has the column path twice"),
        ([["a.png", "x"]], ("path", "label", "site"), "line 2: it has 2 cells, and the header has 3"),
        ([["a.png", " ", "s"]], ("path", "label", "site"), "line 2: the label is empty"),
        ([["/etc/a.png", "x", "s"]], ("path", "label", "site"), "line 2: the path '/etc/a.png' leads out"),
        ([["../a.png", "x", "s"]], ("path", "label", "site"), "leads out of the manifest's folder"),
        ([["b/../../a.png", "x", "s"]], ("path", "label", "site"), "leads out of the manifest's folder"),
        ([["a.png", "x", "s"], ["./a.png", "y", "s"]], ("path", "label", "site"), "line 3: .* is also in line 2"),
        ([["a.png", "x", "s", "tset"]], ("path", "label", "site", "split"), "the split 'tset' is not train, val or"),
        (
            [["a.png", "x", "s", "train"], ["b.png", "x", "s", ""]],
            ("path", "label", "site", "split"),
            "some images of site 's' have a split and some have none",
        ),
    ],
)
def test_faults_have_their_sentence(tmp_path, rows, header, sentence):
    import re

    assert re.search(sentence, refused(manifest(tmp_path, rows, header)))


def test_a_link_does_not_lead_out(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "out").symlink_to(tmp_path)
    assert "leads out" in refused(manifest(tmp_path / "in", [["out/a.png", "x", "s"]]))


def test_files_that_are_neither(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"path,label,site\n\xff\xfe,x,s\n")
    assert "is not a text in UTF-8" in refused(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text('path,label,site\n"a.png,x,s\n')
    assert "is not a proper CSV file" in refused(tmp_path / "b.csv")
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    assert "is not a readable parquet file" in refused(tmp_path / "c.parquet")
    pq.write_table(pa.table({"path": ["a.png", None], "label": [1, 2], "site": ["s", "s"]}), tmp_path / "d.parquet")
    assert "line 2: the path is empty" in refused(tmp_path / "d.parquet")


NAMES = st.text(st.characters(min_codepoint=33, exclude_categories=("Cs", "Cc", "Z")), min_size=1, max_size=8)
PLAIN = NAMES.filter(lambda name: name not in (".", "..") and "/" not in name)


@QUIET
@given(st.lists(st.tuples(PLAIN, NAMES, NAMES), min_size=1, max_size=12, unique_by=lambda row: row[0]))
def test_what_is_written_is_read(tmp_path, rows):
    found = read_manifest(manifest(tmp_path, [(f"{name}.png", label, site) for name, label, site in rows]))
    assert sorted((row.picture.name, row.label, row.domain) for row in found.rows) == sorted(
        (f"{name}.png", label, site) for name, label, site in rows
    )
    assert found.classes == tuple(sorted({label for _, label, _ in rows}))
    assert {row.part for row in found.rows} == {""}


@QUIET
@given(st.lists(st.tuples(PLAIN, st.sampled_from(["train", "val", "test"])), min_size=1, unique_by=lambda row: row[0]))
def test_every_image_goes_into_one_part(tmp_path, rows):
    path = manifest(tmp_path, [(n, "x", "s", split) for n, split in rows], ("path", "label", "site", "split"))
    train, test, unused = settled(read_manifest(path).rows)
    assert len(train) + len(test) + len(unused) == len(rows)
    assert len(train) == sum(split == "train" for _, split in rows)
    assert bool(unused) <= any(split == "test" for _, split in rows)


@QUIET
@given(st.binary(max_size=200) | st.binary(max_size=100).map(lambda tail: b"path,label,site,split\n" + tail))
def test_any_bytes_are_read_or_refused_in_one_sentence(tmp_path, content):
    for name in ("x.csv", "x.parquet"):
        (tmp_path / name).write_bytes(content)
        try:
            found = read_manifest(tmp_path / name)
        except UserError as error:
            assert "\n" not in str(error) and str(error).encode()
        else:
            assert all(row.picture.resolve().is_relative_to(tmp_path.resolve()) for row in found.rows)


def test_a_manifest_that_is_too_large_or_has_long_names_is_refused(tmp_path, monkeypatch):
    from protolith.data.sources import manifest

    path = tmp_path / "m.csv"
    path.write_text("path,label,site\n" + "".join(f"{n}.png,x,a\n" for n in range(6)))
    with monkeypatch.context() as patched, pytest.raises(UserError, match="more than the 5 rows"):
        patched.setattr(manifest, "ROWS", 5)
        manifest.read_manifest(path)
    with monkeypatch.context() as patched, pytest.raises(UserError, match="and 20 are allowed"):
        patched.setattr(manifest, "BYTES", 20)
        manifest.read_manifest(path)
    rows = {"path": [f"{n}.png" for n in range(6)], "label": ["x"] * 6, "site": ["a"] * 6}
    pq.write_table(pa.table(rows), tmp_path / "m.parquet")
    for name, words in (("ROWS", "6 rows, and 5 are allowed"), ("BYTES", "and 5 are allowed")):
        with monkeypatch.context() as patched, pytest.raises(UserError, match=words):
            patched.setattr(manifest, name, 5)
            manifest.read_manifest(tmp_path / "m.parquet")
    path.write_text(f"path,label,site\na.png,x,{'s' * 201}\n")
    with pytest.raises(UserError, match="has 201 letters, and 200 are allowed"):
        manifest.read_manifest(path)
