"""Loading tasks: which source wins, what is cached, what is counted, what is said."""

import time

import pytest
import torch
from PIL import Image
from test_sources import scans, write_images, write_parquet

from protolith.data import inspect, tasks
from protolith.data.reading import read_found
from protolith.data.sources import hub
from protolith.data.sources.found import silent
from protolith.data.spec import RULES, all_tasks
from protolith.data.tasks import in_folder, load_task, read_task_file
from protolith.errors import UserError

DIGITS = tuple("0123456789")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    def refuse(source, progress):
        raise hub.HubUnavailable(f"{source.repo}: no network in this test")

    monkeypatch.setattr(tasks, "download", refuse)
    monkeypatch.delenv("PROTOLITH_DATA", raising=False)


@pytest.fixture
def office(tmp_path):
    """A small office10 in class folders, two of its domains in the parquet layout."""
    data = tmp_path / "data"
    for name in all_tasks()["office10"].classes:
        write_images(data / "caltech" / name, 2)
        write_images(data / "office10" / "Amazon" / name, 3)
    images, _ = scans(16, 0, 40)
    labels = [index % 10 for index in range(40)]
    domains = ["webcam"] * 20 + ["dslr"] * 20
    path = data / "office10" / "all.parquet"
    write_parquet(path, images, labels, names=all_tasks()["office10"].classes, domain=domains)
    return data


def sizes(task):
    return {domain.name: (len(domain.train), len(domain.test)) for domain in task.domains}


def test_the_names():
    assert list(all_tasks()) == ["mini", "digit5", "digits", "office10", "pacs"]
    assert all_tasks()["digit5"].domains == ("mnist", "usps", "svhn", "syn", "mnistm")
    assert all_tasks()["office10"].domains == ("caltech", "amazon", "webcam", "dslr")
    assert all_tasks()["pacs"].domains == ("photo", "art_painting", "cartoon", "sketch")
    assert {name for name, spec in all_tasks().items() if spec.split == "by-position"} == {"office10", "pacs"}


def test_layouts_may_be_mixed(office, tmp_path):
    task = load_task("office10", data=office, cache=tmp_path / "cache")
    assert sizes(task) == {"caltech": (16, 4), "amazon": (24, 6), "webcam": (16, 4), "dslr": (16, 4)}
    assert task.file and task.file.parent == tmp_path / "cache"
    assert task.size == 32 and task.notes == ()
    assert load_task("office10", data=office, cache=tmp_path / "cache", size=16).size == 16


def test_the_environment_names_the_data_and_the_cache(office, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOLITH_DATA", str(office))
    monkeypatch.setenv("PROTOLITH_CACHE", str(tmp_path / "elsewhere"))
    assert load_task("office10").file.parent == tmp_path / "elsewhere"


def test_a_decoded_task_is_found_without_its_data(office, tmp_path):
    task = load_task("office10", data=office, cache=tmp_path / "cache")
    assert load_task("office10", cache=tmp_path / "cache").file == task.file


def test_a_domain_that_the_directory_lacks_comes_from_the_cache(office, tmp_path):
    load_task("office10", data=office, cache=tmp_path / "cache")
    other = tmp_path / "other"
    for name in all_tasks()["office10"].classes:
        write_images(other / "caltech" / name, 5)
    task = load_task("office10", data=other, cache=tmp_path / "cache")
    assert sizes(task)["caltech"] == (40, 10) and sizes(task)["amazon"] == (24, 6)


def test_changed_files_are_decoded_again(office, tmp_path):
    before = load_task("office10", data=office, cache=tmp_path / "cache")
    write_images(office / "caltech" / "bike", 4)
    after = load_task("office10", data=office, cache=tmp_path / "cache")
    assert sizes(after)["caltech"] == (18, 4) and before.file != after.file


def test_a_damaged_decoded_file_is_made_anew(office, tmp_path):
    task = load_task("office10", data=office, cache=tmp_path / "cache")
    images = task.domains[0].train.images.clone()
    task.file.unlink()
    task.file.write_bytes(b"damaged")
    said = []
    again = load_task("office10", data=office, cache=tmp_path / "cache", progress=said.append)
    assert said[0] == f"the decoded file '{task.file}' is damaged and is made anew"
    assert torch.equal(again.domains[0].train.images, images)


def test_a_directory_that_does_not_exist(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"^the data directory '.*nowhere' does not exist\.$"):
        load_task("office10", data=tmp_path / "nowhere")
    monkeypatch.setenv("PROTOLITH_DATA", str(tmp_path / "nothing"))
    with pytest.raises(UserError, match=r"^the data directory '.*nothing' \(from PROTOLITH_DATA\) does not exist\.$"):
        load_task("pacs")


def test_missing_domains_say_where_to_put_which_files(tmp_path):
    with pytest.raises(UserError) as caught:
        load_task("office10", cache=tmp_path / "cache")
    assert str(caught.value) == (
        "task office10 lacks the images of 'caltech', 'amazon', 'webcam', 'dslr' and no hub repository is known "
        "for it: put files in a directory DIR given by --data or PROTOLITH_DATA as "
        "DIR/office10/*.parquet with a 'domain' column or DIR/caltech/*.parquet or DIR/amazon/*.parquet "
        "or DIR/webcam/*.parquet or DIR/dslr/*.parquet or DIR/caltech/<class>/<image>."
    )
    with pytest.raises(UserError) as caught:
        load_task("digits", data=tmp_path, cache=tmp_path / "cache")
    sentence = str(caught.value)
    assert "lacks the images of 'mnist', 'usps', 'svhn' and the Hugging Face hub did not help" in sentence
    assert f"{tmp_path}/usps/usps.bz2 and usps/usps.t.bz2" in sentence


def test_other_classes_than_the_task_has(tmp_path):
    for domain in all_tasks()["pacs"].domains:
        write_images(tmp_path / domain / "zebra", 10)
    with pytest.raises(UserError, match=r"domain 'photo' in .* has other classes than its task: it lacks 'dog'"):
        load_task("pacs", data=tmp_path, cache=tmp_path / "cache")


@pytest.mark.parametrize("size", [0, 7, 4000])
def test_a_size_out_of_range(size):
    with pytest.raises(UserError, match=rf"^size must be from 8 to 512 pixels, not {size}\.$"):
        load_task("mini", size=size)


def test_an_unknown_name(tmp_path):
    with pytest.raises(UserError, match=r"^unknown task 'offce10'\. Did you mean 'office10'\?"):
        load_task("offce10")
    with pytest.raises(UserError, match=r"^the folder '.*absent' does not exist; a task is a folder or one of mini,"):
        load_task(str(tmp_path / "absent"))


def test_any_folder_is_a_task(tmp_path):
    for site in ("hospital-a", "hospital-b"):
        for name in ("ill", "well"):
            write_images(tmp_path / "lungs" / site / name, 10)
    task = load_task(str(tmp_path / "lungs"), cache=tmp_path / "cache")
    assert task.name == "lungs" and task.classes == ("ill", "well")
    assert sizes(task) == {"hospital-a": (16, 4), "hospital-b": (16, 4)}
    assert task.notes[0] == f"no test folder in 'hospital-a', 'hospital-b': {RULES['by-class']}"
    assert load_task(str(tmp_path / "lungs"), cache=tmp_path / "cache").file == task.file
    same = read_task_file(task.file)
    assert torch.equal(same.domains[0].train.images, task.domains[0].train.images)


def test_a_folder_named_like_a_task_never_stands_in_for_it(tmp_path):
    for domain in all_tasks()["office10"].domains:
        for name in all_tasks()["office10"].classes:
            write_images(tmp_path / "office10" / domain / name, 2)
    load_task(str(tmp_path / "office10"), cache=tmp_path / "cache")
    with pytest.raises(UserError, match="task office10 lacks the images"):
        load_task("office10", cache=tmp_path / "cache")


def test_read_task_file_says_what_is_wrong(tmp_path):
    with pytest.raises(UserError, match=r"^the decoded task '.*none' does not exist\.$"):
        read_task_file(tmp_path / "none")
    (tmp_path / "bad").write_bytes(b"bad")
    with pytest.raises(UserError, match=r"^the decoded task '.*bad' is damaged, so load the task again by its name\.$"):
        read_task_file(tmp_path / "bad")


def test_mini_is_embedded_and_cached(tmp_path):
    task = load_task("mini", cache=tmp_path)
    assert tuple(domain.name for domain in task.domains) == all_tasks()["mini"].domains
    assert task.classes == all_tasks()["mini"].classes
    start = time.perf_counter()
    assert load_task("mini", cache=tmp_path).file == task.file
    assert time.perf_counter() - start < 0.5


@pytest.fixture
def digits(tmp_path):
    data = tmp_path / "data"
    for domain in ("mnist", "usps", "svhn"):
        for part, (start, stop) in {"train": (0, 40), "test": (40, 60)}.items():
            write_parquet(data / domain / f"{part}.parquet", *scans(16, start, stop), names=DIGITS)
    return data


def test_syn_is_drawn_when_it_is_absent(digits, tmp_path, monkeypatch):
    from protolith.data.drawn import syn

    render = syn.render
    monkeypatch.setattr(syn, "render", lambda size: render(size, 40, 20))
    task = load_task("digits", data=digits, cache=tmp_path / "cache")
    assert [domain.name for domain in task.domains] == ["mnist", "usps", "svhn", "syn*"]
    assert task.notes == ("syn*: drawn by Protolith, because the SYN data set (Roy et al. 2018) was not found",)
    assert load_task("digits", cache=tmp_path / "cache").file == task.file
    for label in DIGITS:
        write_images(digits / "syn" / "imgs_train" / label, 2)
        write_images(digits / "syn" / "imgs_valid" / label, 1)
    real = load_task("digits", data=digits, cache=tmp_path / "cache")
    assert sizes(real)["syn"] == (20, 10) and real.notes == ()


def test_a_split_that_is_not_the_tasks_own_is_noted(digits, office, tmp_path):
    (digits / "usps" / "test.parquet").unlink()
    for label in DIGITS:
        write_images(digits / "syn" / "train" / label, 1)
        write_images(digits / "syn" / "test" / label, 1)
    assert (
        f"usps: no test part was found, so {RULES['by-position']}"
        in load_task("digits", data=digits, cache=tmp_path).notes
    )
    for part in ("train", "test"):
        for name in all_tasks()["office10"].classes:
            write_images(office / "dslr" / part / name, 2)
    notes = load_task("office10", data=office, cache=tmp_path / "cache").notes
    assert notes == ("dslr: divided as its files are, not by position",)


# Looking at a task


def test_counts_and_contact_sheet(office, tmp_path):
    task = load_task("office10", data=office, cache=tmp_path / "cache")
    rows = inspect.counts_table(task)
    assert [(row.domain, row.split, row.total) for row in rows[:2]] == [
        ("caltech", "train", 16),
        ("caltech", "test", 4),
    ]
    assert all(sum(row.per_class) == row.total and len(row.per_class) == 10 for row in rows)
    inspect.contact_sheet(task, tmp_path / "deep" / "sheet.png", per_class=2)
    with Image.open(tmp_path / "deep" / "sheet.png") as sheet:
        assert sheet.format == "PNG" and sheet.width > 640 and sheet.height > 4 * 2 * 64
    with pytest.raises(UserError, match="needs at least 1 image per class, not 0"):
        inspect.contact_sheet(task, tmp_path / "sheet.png", per_class=0)
    with pytest.raises(UserError, match="the contact sheet cannot be written to"):
        inspect.contact_sheet(task, tmp_path / "deep" / "sheet.png" / "below.png")


def test_task_info_says_what_is_here(office, tmp_path):
    info = inspect.task_info("office10", data=office, cache=tmp_path / "cache")
    assert [place.here for place in info.places] == [True] * 4
    assert info.places[0].where == str(office / "caltech")
    absent = inspect.task_info("digits", data=office, cache=tmp_path / "cache")
    assert [place.where for place in absent.places][:2] == [
        "to be downloaded: hub:ylecun/mnist@main/mnist",
        "to be downloaded: hub:flwrlabs/usps@main/data",
    ]
    assert absent.places[3].domain == "syn*" and absent.licence
    nowhere = inspect.task_info("office10", cache=tmp_path / "cache")
    assert nowhere.places[0].where == "not here, and no hub repository is known"
    assert inspect.task_info("mini").places[0].where == "embedded"
    own = inspect.task_info(str(office / "office10"))
    assert own.name == "office10" and [place.domain for place in own.places] == ["Amazon"]


# Real data


@pytest.mark.parametrize(
    ("task", "domain", "train", "test"),
    [
        ("office10", "caltech", 899, 224),
        ("office10", "amazon", 768, 190),
        ("office10", "webcam", 237, 58),
        ("office10", "dslr", 127, 30),
        ("pacs", "photo", 1336, 334),
        ("pacs", "art_painting", 1640, 408),
        ("pacs", "cartoon", 1876, 468),
        ("pacs", "sketch", 3144, 785),
        ("digits", "usps", 7291, 2007),
        ("digits", "svhn", 10_000, 5_001),
        ("digit5", "mnistm", 8_001, 2_500),
        pytest.param("digits", "mnist", 60_000, 10_000, marks=pytest.mark.slow),
    ],
)
def test_real_counts(shared_data, task, domain, train, test):
    found = in_folder(shared_data, task, domain)
    spec = all_tasks()[task]
    read = read_found(found, spec.classes, 8 if domain == "mnist" else 32, spec.rule, silent)
    assert (len(read.train), len(read.test)) == (train, test)
    classes = len(all_tasks()[task].classes)
    assert min(read.train.counts(classes)) > 0 and min(read.test.counts(classes)) > 0
    assert read.train.images.float().std() > 10  # pictures, not a constant


def test_the_second_start_is_quick(shared_data, tmp_path):
    first = load_task("office10", data=shared_data, cache=tmp_path)
    start = time.perf_counter()
    second = load_task("office10", data=shared_data, cache=tmp_path)
    assert time.perf_counter() - start < 0.5
    assert second.file == first.file and sizes(second) == sizes(first)


def test_a_folder_with_the_name_of_a_task_is_pointed_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mini").mkdir()
    said = []
    load_task("mini", progress=said.append)
    assert said[0] == "'mini' is a task of that name; for the folder of that name write ./mini"
