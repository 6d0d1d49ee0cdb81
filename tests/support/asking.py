"""Asks a server without end and counts what was whole and what was not; run inside a cluster.

    python3 - asking.py: HOST, PORT and API_KEY in the environment

Bare Python, for it is handed to a pod as text. Three clients ask for short answers, two for long ones
that are streamed, each request by a connection of its own. Every two seconds a line of JSON says what
there has been: `whole`, and `failed` with the time and the reason of each. A stream is whole when its
last line is there.
"""

import http.client
import json
import os
import threading
import time

LIMIT_S = 240.0
SHORT, LONG = 4, 300

lock = threading.Lock()
seen = {"whole": 0, "streams": 0, "failed": []}


def ask(tokens: int, stream: bool) -> None:
    """One request; raises whatever is wrong with it."""
    body = {"model": "rehearsal", "prompt": "say", "max_tokens": tokens, "stream": stream}
    body |= {"temperature": 1.0, "ignore_eos": True}
    headers = {"Content-Type": "application/json"}
    headers["Authorization"] = f"Bearer {os.environ['API_KEY']}"
    host, port = os.environ["HOST"], int(os.environ["PORT"])
    connection = http.client.HTTPConnection(host, port, timeout=LIMIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        if answer.status != 200:
            raise ValueError(f"status {answer.status}: {text[:120]}")
        if stream and not text.rstrip().endswith("data: [DONE]"):
            raise ValueError(f"a stream was cut: {text[-120:]}")
        if not stream and json.loads(text)["usage"]["completion_tokens"] != tokens:
            raise ValueError(f"an answer is short: {text[:120]}")
    finally:
        connection.close()


def client(tokens: int, stream: bool, pause_s: float) -> None:
    """Ask again and again."""
    while True:
        began = time.time()
        try:
            ask(tokens, stream)
        except Exception as error:
            with lock:
                seen["failed"].append([began, time.time() - began, repr(error)[:200]])
        else:
            with lock:
                seen["streams" if stream else "whole"] += 1
        time.sleep(pause_s)


for kind in ((SHORT, False, 0.5),) * 3 + ((LONG, True, 0.5),) * 2:
    threading.Thread(target=client, args=kind, daemon=True).start()
while True:
    time.sleep(2)
    with lock:
        print(json.dumps(seen), flush=True)
