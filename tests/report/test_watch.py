"""The watcher: it shows rounds as they come, to this machine alone, and nothing but its two addresses."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from protolith.errors import UserError
from protolith.report.page.watch import Server, Watched, open_server


@pytest.fixture
def served(tmp_path):
    """Serve a directory: a function that asks for an address and gives status, headers and text."""
    servers = []

    def serve(path):
        server = Server(Watched([path]), 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def ask(address, host=None, method="GET"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
            connection.putrequest(method, address, skip_host=True)
            connection.putheader("Host", host if host is not None else f"127.0.0.1:{server.server_port}")
            connection.endheaders()
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read().decode()

        ask.port = server.server_port
        return ask

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_round_that_is_done_is_news_once(make_run, metrics_line, served, tmp_path):
    run = make_run("r", rounds=1, finished=False)
    ask = served(tmp_path)
    status, headers, text = ask("/")
    assert status == 200 and "so far (round 1 of 3)" in text and "connect-src &#x27;self&#x27;" in text
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    status, _, text = ask("/data.json")
    news = json.loads(text)
    assert status == 200 and news["data"]["figures"]["s0-rounds"]["views"][0]["data"][0]["x"] == [1]
    assert news["standing"].startswith("0 of 1 runs finished, 1 of 3 rounds")
    since = f"/data.json?since={news['version']}"
    assert ask(since)[0] == 204
    run.append_metrics(metrics_line(1, {"pen": 50.0, "photo": 60.0}))
    status, _, text = ask(since)
    news = json.loads(text)
    assert status == 200 and news["data"]["figures"]["s0-rounds"]["views"][0]["data"][0]["x"] == [1, 2]
    assert "so far (round 2 of 3)" in news["parts"]["answer"]


def test_a_directory_without_a_run_waits_for_one(make_run, served, tmp_path):
    (tmp_path / "runs").mkdir()
    ask = served(tmp_path / "runs")
    assert "There is no run here yet." in ask("/")[2]
    make_run("runs/r", rounds=1, finished=False)
    assert "so far (round 1 of 3)" in ask("/")[2]


PATHS = [
    "/config.toml",
    "/r/config.toml",
    "/../secret",
    "/r/../../secret",
    "/%2e%2e/secret",
    "/..%2fsecret",
    "/r/link",
    "/link",
    "//etc/passwd",
    "/%2fetc%2fpasswd",
    "/etc/passwd",
    "/data.json/../../secret",
    "/./",
    "/?/../secret/x",
    "/data.json%00",
    "file:///etc/passwd",
]


def test_no_file_is_had_by_a_path(make_run, served, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("hidden treasure")
    run = make_run("runs/r")
    for place in (run.path / "link", run.path.parent / "link"):
        place.symlink_to(secret)
    ask = served(run.path.parent)
    for path in PATHS:
        status, _, text = ask(path)
        assert "hidden treasure" not in text and "root:x:" not in text, path
        assert status in (400, 404) or (path.startswith("/?") and status == 200), path
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert ask("/", method=method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "", "127.0.0.1.evil.example", "127.0.0.1:1"])
def test_other_names_for_this_machine_are_refused(make_run, served, tmp_path, host):
    make_run("r")
    ask = served(tmp_path)
    assert ask("/data.json", host)[0] == 403 and ask("/", host)[0] == 403
    assert ask("/data.json", f"localhost:{ask.port}")[0] == 200


def test_only_the_loopback_address_listens(make_run, tmp_path):
    make_run("r")
    with open_server([tmp_path]) as first, open_server([tmp_path]) as second:
        assert first.server_port != second.server_port
        for server in (first, second):
            assert server.socket.getsockname()[0] == "127.0.0.1"
        with pytest.raises(UserError, match=f"--port {first.server_port} cannot be used"):
            open_server([tmp_path], first.server_port)
    with pytest.raises(UserError, match="nowhere is no directory"):
        open_server([tmp_path / "nowhere"])


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_the_watcher(make_run, tmp_path):
    make_run("r", rounds=1, finished=False)
    process = subprocess.Popen(
        [sys.executable, "-m", "protolith", "watch", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    said = process.stdout.readline()
    assert said.startswith("open http://127.0.0.1:")
    port = int(said.split(":")[2].split("/")[0])
    socket.create_connection(("127.0.0.1", port), timeout=10).close()
    os.kill(process.pid, signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and rest == "the watcher has ended; the runs go on\n" and errors == ""
