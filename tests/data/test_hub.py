"""The hub source against a loopback server that speaks as much of the hub's API as a download needs."""

import hashlib
import io
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from protolith.data import spec as spec_module
from protolith.data.sources import hub
from protolith.data.sources.found import silent
from protolith.data.spec import HubSource, TaskSpec, all_tasks
from protolith.data.tasks import load_task
from protolith.errors import UserError

SHA = "0123456789abcdef0123456789abcdef01234567"


def parquet_bytes(start: int, count: int) -> bytes:
    digits = load_digits()
    rows = []
    for scan, label in zip(digits.images[start : start + count], digits.target[start : start + count], strict=True):
        buffer = io.BytesIO()
        Image.fromarray((scan * 15.9).astype("uint8")).save(buffer, format="PNG")
        rows.append({"image": {"bytes": buffer.getvalue(), "path": None}, "label": int(label)})
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


class FakeHub(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self):
        self.answer(body=False)

    def do_GET(self):
        self.answer(body=True)

    def answer(self, body):
        path = self.path.split("?")[0]
        self.asked.append(f"{self.command} {path}")
        if path.startswith("/api/datasets/someone/digits/tree/"):
            listing = [
                {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for name, content in self.files.items()
            ]
            return self.send(json.dumps(listing).encode(), body)
        if path.startswith("/api/datasets/someone/digits"):
            siblings = [{"rfilename": name} for name in self.files]
            info = {
                "id": "someone/digits",
                "sha": SHA,
                "siblings": siblings,
                "private": False,
                "downloads": 0,
            }
            return self.send(json.dumps({**info, "likes": 0, "tags": []}).encode(), body)
        prefix = f"/datasets/someone/digits/resolve/{SHA}/"
        if path.startswith(prefix) and (content := self.files.get(path[len(prefix) :])):
            return self.send(content, body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def send(self, content, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def fake_hub(monkeypatch, tmp_path):
    handler = type("Handler", (FakeHub,), {"asked": []})
    handler.files = {
        "data/train-00000-of-00001.parquet": parquet_bytes(0, 60),
        "data/test-00000-of-00001.parquet": parquet_bytes(60, 20),
        "data/extra-00000-of-00001.parquet": b"never fetched",
        "README.md": b"never fetched",
    }
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("PROTOLITH_DATA", raising=False)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def spec(monkeypatch):
    settings = all_tasks()["mini"].settings
    spec = TaskSpec(
        name="hubtask",
        domains=("scans",),
        classes=tuple("0123456789"),
        split="given",
        settings=settings,
        hub={"scans": HubSource(repo="someone/digits")},
    )
    monkeypatch.setitem(spec_module._PLUGGED, "hubtask", spec)
    return spec


def test_a_task_comes_from_the_hub_and_then_from_the_cache(fake_hub, spec, tmp_path):
    said = []
    task = load_task("hubtask", cache=tmp_path / "cache", progress=said.append)
    scans = task.by_name["scans"]
    assert (len(scans.train), len(scans.test)) == (60, 20)
    assert scans.train.labels[:5].tolist() == load_digits().target[:5].tolist()
    assert "someone/digits: fetching from the Hugging Face hub" in said
    assert "scans: 80 of 80 images" in said
    assert not [request for request in fake_hub.asked if "README" in request or "extra" in request]
    fake_hub.asked.clear()
    again = load_task("hubtask", cache=tmp_path / "cache")
    assert again.file == task.file
    assert fake_hub.asked == []


def test_a_decoded_task_needs_no_hub(fake_hub, spec, tmp_path, monkeypatch):
    load_task("hubtask", cache=tmp_path / "cache")
    monkeypatch.setenv("HF_ENDPOINT", closed_port())
    assert len(load_task("hubtask", cache=tmp_path / "cache").domains) == 1


def test_downloaded_files_are_kept_by_the_hubs_own_cache(fake_hub, spec, tmp_path, monkeypatch):
    files = hub.download(spec.hub["scans"], silent)
    assert [file.name for file in files] == ["test-00000-of-00001.parquet", "train-00000-of-00001.parquet"]
    assert all(tmp_path / "hub" in file.parents for file in files)
    monkeypatch.setenv("HF_ENDPOINT", closed_port())
    assert hub.download(spec.hub["scans"], silent) == files


def test_offline_says_where_to_put_which_files(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", closed_port())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("PROTOLITH_DATA", raising=False)
    with pytest.raises(UserError) as caught:
        load_task("hubtask", cache=tmp_path / "cache")
    sentence = str(caught.value)
    assert sentence.startswith("task hubtask lacks the images of 'scans' and the Hugging Face hub did not help (")
    assert "--data or PROTOLITH_DATA" in sentence
    assert "DIR/scans/*.parquet" in sentence
    assert "\n" not in sentence


def test_a_repository_that_is_not_there_is_said(fake_hub, tmp_path):
    with pytest.raises(hub.HubUnavailable, match="someone/else: "):
        hub.download(HubSource(repo="someone/else"), silent)


def test_a_configuration_without_files_is_said(fake_hub):
    with pytest.raises(hub.HubUnavailable, match="no parquet files in 'other' of revision 'main'"):
        hub.download(HubSource(repo="someone/digits", folder="other"), silent)


def test_every_hub_source_is_a_repository_of_a_task_domain():
    for task in all_tasks().values():
        assert set(task.hub) <= set(task.domains)
        assert all(len(source.repo.split("/")) == 2 and source.revision for source in task.hub.values())


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"
