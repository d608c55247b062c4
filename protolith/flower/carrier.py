"""Flower as the carrier: requests and replies as its messages, the grid as the way to the sites."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from protolith.engines.messages import sentence
from protolith.files import parse_json
from protolith.flower.site import Site
from protolith.flower.wire import Exchange, Reply, Request
from protolith.records import Record, from_bytes, to_bytes

ABOUT, PARTS = "about", "records"
POLL = 0.5  # seconds between two looks for replies
WORDS = 8 << 20  # letters of JSON in a message
ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '\|u1', 'fortran_order': (?:False|True), 'shape': \((\d{1,15}),\), \} *\n",
    re.DOTALL,
)
RECORDS = 8  # in a message: weights and knowledge, to train with and to test


def to_content(about: Mapping[str, object], parts: Mapping[str, Record]) -> RecordDict:
    """Pack plain values and records; tensors keep their type and every bit.

    Each record is one array of bytes, in the safetensors format: Flower sends every array by itself, with requests
    of its own, and a network's hundred small tensors took it most of a minute.
    """
    packed = {name: Array(np.frombuffer(to_bytes(record), dtype=np.uint8)) for name, record in parts.items()}
    return RecordDict({ABOUT: ConfigRecord({"json": json.dumps(about)}), PARTS: ArrayRecord(packed)})


def from_content(content: RecordDict) -> tuple[dict[str, object], dict[str, Record]]:
    """Unpack what `to_content` packed, and nothing else."""
    text = str(content.config_records[ABOUT]["json"])
    if len(text) > WORDS:
        raise ValueError(f"{len(text):,} letters, and {WORDS:,} are allowed")
    about, packed = parse_json(text), content.array_records[PARTS]
    if not isinstance(about, dict):
        raise ValueError("what a message says is not a JSON object")
    if len(packed) > RECORDS:
        raise ValueError(f"{len(packed)} records, and {RECORDS} are allowed")
    return about, {name: from_bytes(plain_bytes(array.data)) for name, array in packed.items()}


def plain_bytes(content: bytes) -> bytes:
    """The bytes of an array of bytes in numpy's format; it must have exactly as many as its header says.

    Read without numpy, which takes a header for Python, and makes room for as much as it claims.
    """
    length = int.from_bytes(content[8:10], "little")
    header = ARRAY.fullmatch(content[: 10 + length])
    if header is None or int(header[1]) != len(content) - 10 - length:
        raise ValueError("an array that is not one of bytes")
    return content[10 + length :]


class GridExchange:
    """The way to the sites: each has one node, which its key makes its own."""

    def __init__(self, grid: Grid, nodes: Mapping[str, int]) -> None:
        self.grid = grid
        self.nodes = nodes

    def connected(self) -> set[str]:
        """The sites whose node is online."""
        online = set(self.grid.get_node_ids())
        return {site for site, node in self.nodes.items() if node in online}

    def ask(self, requests: Sequence[Request], seconds: float) -> dict[str, Reply]:
        """Send one message to each site and wait; a site that goes away is not waited for."""
        messages = [
            Message(
                content=to_content({**request.about, "site": request.site}, request.records),
                message_type="train",
                dst_node_id=self.nodes[request.site],
                ttl=seconds,
            )
            for request in requests
        ]
        ids = list(self.grid.push_messages(messages))
        waiting = {id_: request.site for id_, request in zip(ids, requests, strict=True) if id_}
        replies: dict[str, Reply] = {}
        deadline = time.monotonic() + seconds
        while waiting and time.monotonic() < deadline:
            for message in self.grid.pull_messages(list(waiting)):
                site = waiting.pop(message.metadata.reply_to_message_id)
                replies[site] = _read(site, message)
            if waiting:
                time.sleep(POLL)
        return replies


def _read(site: str, message: Message) -> Reply:
    """Read a reply that may hold anything."""
    if message.has_error():
        return Reply(site, error=f"no answer ({sentence(message.error.reason or 'unknown reason')})")
    try:
        about, parts = from_content(message.content)
        return Reply(site, about, parts, sentence(about.pop("error", "")))
    except Exception as error:
        return Reply(site, error=f"sent an answer that cannot be read ({type(error).__name__})")


def client_app() -> ClientApp:
    """The site's half as a Flower app; the node's configuration says which site this is."""

    def work(message: Message, context: Context) -> Message:
        node = context.node_config
        site = Site(str(node["site"]), Path(str(node["data"])), Path(str(node["state"])))
        about, parts = from_content(message.content)
        reply = site.answer(Request(str(about.pop("site")), about, parts))
        return Message(content=to_content({**reply.about, "error": reply.error}, reply.records), reply_to=message)

    app = ClientApp()
    app.train()(work)
    return app


def server_app(serve: Callable[[Mapping[str, object], Callable[[Mapping[str, int]], Exchange]], None]) -> ServerApp:
    """The server's half as a Flower app: `serve` gets the settings of the submission and the way to the sites."""

    def main(grid: Grid, context: Context) -> None:
        serve(dict(context.run_config), lambda nodes: GridExchange(grid, nodes))

    app = ServerApp()
    app.main()(main)
    return app


app = client_app()
