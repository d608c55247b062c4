"""The page while runs train: served to this machine alone, renewed as rounds finish."""

import hashlib
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from protolith.errors import UserError
from protolith.report.page.build import Page, make_page, render
from protolith.report.page.html import script_json
from protolith.report.page.study import Study, folders, read_study

LOOPBACK = "127.0.0.1"
USUAL_PORT = 8750
FILES = ("config.toml", "metrics.jsonl", "summary.json", "failed.json", "diagnostics")


class Watched:
    """Runs, and the page that was made of them; it is made again when a file of theirs has changed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = list(paths)
        self._lock = threading.Lock()
        self._version = ""
        self._page = Page("", {})
        self._standing = ""

    def page(self) -> tuple[str, Page, str]:
        """The page as of now, the version of it, and how far the runs are."""
        with self._lock:
            version = self._now()
            if version != self._version:
                study = self._study()
                self._page, self._standing, self._version = make_page(study), standing(study), version
            return self._version, self._page, self._standing

    def _now(self) -> str:
        """What tells one state of the files from another."""
        digest = hashlib.sha256()
        for path in self.paths:
            for folder in folders(path):
                for name in FILES:
                    try:
                        found = (folder / name).stat()
                        digest.update(f"{folder}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
                    except OSError:
                        continue
        return digest.hexdigest()[:16]

    def _study(self) -> Study:
        try:
            return read_study(self.paths)
        except UserError:  # nothing there yet
            return Study([], {}, ", ".join(path.resolve().name for path in self.paths))


def standing(study: Study) -> str:
    """How far the runs are, in one line."""
    runs = list(study.runs)
    done = sum(run.finished is not None for run in runs)
    rounds, of = sum(len(run.rounds) for run in runs), sum(run.config.rounds for run in runs)
    return f"{done} of {len(runs)} runs finished, {rounds} of {of} rounds; updated at {time.strftime('%H:%M:%S')}."


class Handler(BaseHTTPRequestHandler):
    """Answers two addresses, `/` and `/data.json`, and nothing else: no file is ever looked up by a path."""

    server: "Server"

    def do_GET(self) -> None:
        """Answer a request."""
        if self.headers.get("Host") not in self.server.hosts:  # a foreign page that found a way to this address
            return self._send(403, "text/plain", b"this page is for this machine only\n")
        address = urlsplit(self.path)
        if address.path == "/":
            _, page, _ = self.server.watched.page()
            return self._send(200, "text/html", render(page, live=True).encode())
        if address.path != "/data.json":
            return self._send(404, "text/plain", b"there is nothing here\n")
        version, page, line = self.server.watched.page()
        if parse_qs(address.query).get("since") == [version]:
            return self._send(204, "application/json", b"")
        news: dict[str, object] = {"version": version, "standing": line, "parts": page.parts, "data": page.data()}
        self._send(200, "application/json", script_json(news).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Be quiet."""


class Server(ThreadingHTTPServer):
    """Listens on the loopback address only."""

    daemon_threads = True

    def __init__(self, watched: Watched, port: int) -> None:
        super().__init__((LOOPBACK, port), Handler)
        self.watched = watched
        self.hosts = {f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost")}

    @property
    def address(self) -> str:
        """Where to look."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing about a browser that has closed its connection."""


def open_server(paths: Sequence[Path], port: int | None = None) -> Server:
    """Listen on a port: the one that was asked for, else the usual one, else any that is free."""
    for path in paths:
        if not path.is_dir():
            raise UserError(f"{path} is no directory: name a run, or a directory of runs.")
    watched = Watched(paths)
    if port is not None:
        try:
            return Server(watched, port)
        except (OSError, OverflowError) as error:
            raise UserError(f"--port {port} cannot be used: {getattr(error, 'strerror', None) or error}.") from None
    try:
        return Server(watched, USUAL_PORT)
    except OSError:
        return Server(watched, 0)
