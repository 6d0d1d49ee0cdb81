"""The scripted server as a process of its own, which writes garbage in its first starts.

    python3 garbage_server.py -- PORT STARTS GARBAGE

STARTS is a file that gets a line for each start. The first GARBAGE of them repeat one token, as a
process whose graphs replay wrongly may; the others write text.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.scripted_server import Reply, completion, scripted_server


def repeated(payload: Mapping[str, Any]) -> Reply:
    """One token over and over."""
    body = completion(payload["prompt"], payload["seed"], payload["max_tokens"])
    body["choices"][0]["token_ids"] = [7] * payload["max_tokens"]
    return 200, json.dumps(body).encode()


def main(port: str, starts: str, garbage: str) -> None:
    """Serve until ended."""
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    file = Path(starts)
    count = len(file.read_text().splitlines()) + 1 if file.exists() else 1
    with file.open("a") as written:
        written.write(f"start {count}\n")
    print(f"server: start {count}", flush=True)
    answer = repeated if count <= int(garbage) else None
    with scripted_server(port=int(port), process_start=time.time(), on_completion=answer):
        over.wait()


if __name__ == "__main__":
    main(*sys.argv[2:])
