"""A real local HTTP server that answers as vLLM 0.27.1 does, in any state a test scripts.

Shapes are those of the captures in tests/healthcheck/data. Its engines move only when told to
(`tick`, a completion), so a test with its own clock drives hours through it in seconds.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from deploy.door import OPEN

MODEL = "tiny"
VOCABULARY = 2048

# Status and body; what a test's own `on_completion` returns.
Reply = tuple[int, bytes]


@dataclass
class Engine:
    """One engine's numbers as /metrics shows them."""

    prompt_tokens: float = 0
    generation_tokens: float = 0
    first_tokens: float = 0  # of requests, made by their prefills
    running: float = 0
    waiting: float = 0
    cache_usage: float = 0
    drafts: float = 0
    accepted_at: list[float] = field(default_factory=lambda: [0.0] * 4)

    def draft(self, drafts: int, rates: tuple[float, ...]) -> None:
        """Count drafts, accepted by position at the given rates per draft."""
        self.drafts += drafts
        for position, rate in enumerate(rates):
            self.accepted_at[position] += round(drafts * rate)


@dataclass
class ScriptedServer:
    """The state of the server; tests write its fields and the next answers follow them."""

    engines: dict[str, Engine] = field(default_factory=lambda: {"0": Engine()})
    models: tuple[str, ...] = (MODEL,)
    process_start: float = 1795957801.58
    speculates: bool = True
    key: str | None = None
    door: bool = True  # without it the key is asked for where vLLM itself does
    health: Reply | None = (200, b"")  # None: no answer at all
    metrics: Reply | None = None  # None: rendered from the engines
    redirect: bool = False
    hung: bool = False  # completions get no answer; a simulation reads it, see simulation.py
    blocked: bool = False  # probes get no answer; a simulation reads it
    drip_s: float = 0.0  # between any two bytes of a completion, in real seconds
    hung_engines: set[str] = field(default_factory=set)
    takes_s: float = 0.0  # until a completion is there; a simulation reads it
    # What an engine makes of the choice that it would have answered, by engine.
    spoil: dict[str, Callable[[dict[str, Any]], None]] = field(default_factory=dict)
    max_model_len: int = 16384
    tokenizes: bool = True
    reads_tokens: float = float("inf")  # of a longer prompt it finds nothing again
    # It writes words of nothing: always, in processes by their number (from 0, counted by
    # `restart`), or at first after so many seconds without work.
    garbles: bool = False
    garbled_processes: frozenset[int] = frozenset()
    garbles_after_s: float = float("inf")
    clock: Callable[[], float] = time.monotonic
    rambles: bool = False  # it chats in words of nothing, and reads well besides
    crossed: bool = False  # gives every request that runs with others the same text
    greedy: bool = False
    fixed_seed: bool = False
    drafting: bool = True
    undrafted_engines: set[str] = field(default_factory=set)
    takes_ranks: bool = True  # False: a proxy drops the header, and the first engine answers all
    rates: tuple[float, ...] = (0.75, 0.6, 0.5, 0.4)  # of acceptance by position
    on_completion: Callable[[Mapping[str, Any]], Reply] | None = None
    on_chat: Callable[[Mapping[str, Any]], Reply] | None = None
    version: str | None = "0.27.1"  # None: no /version
    obeys_stop: bool = True
    # Of a stream: seconds before each of its events, and what it may lack at its end.
    pause_s: float = 0.0
    stream_usage: bool = True
    stream_done: bool = True
    completions: list[Mapping[str, Any]] = field(default_factory=list)
    port: int = 0

    def __post_init__(self) -> None:
        self._server: _Server | None = None
        self._process = 0
        self._worked_at = self.clock()
        # Bound for as long as this lives and never listening: while it is down, the port is
        # nobody else's, and refuses.
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._held.bind(("127.0.0.1", self.port))
        self.port = self._held.getsockname()[1]
        self.up()

    @property
    def url(self) -> str:
        """The address, the same while it is down."""
        return f"http://127.0.0.1:{self.port}"

    def up(self) -> None:
        """Listen, on the same port as before."""
        if self._server is None:
            self._server = _Server(self)
            threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def down(self) -> None:
        """Refuse connections."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def gone(self) -> None:
        """Down for good: the port is anybody's."""
        self.down()
        self._held.close()

    @property
    def listens(self) -> bool:
        """Whether it is up."""
        return self._server is not None

    def restart(self) -> None:
        """Be another process: counters at 0, a new start time."""
        self.engines = {name: Engine() for name in self.engines}
        self.process_start += 1000
        self._process += 1

    def serve_traffic(self, tokens: int = 500, drafts: int = 160) -> None:
        """A few seconds of busy work on every engine."""
        self._worked_at = self.clock()
        for engine in self.engines.values():
            engine.running = 3 + (engine.generation_tokens // tokens) % 2
            engine.prompt_tokens += tokens
            engine.generation_tokens += tokens
            engine.first_tokens += 2
            if drafts:
                engine.draft(drafts, self.rates)

    def idle(self) -> None:
        """Nothing running, nothing queued."""
        for engine in self.engines.values():
            engine.running = engine.waiting = engine.cache_usage = 0

    # --- answers

    def answer(self, method: str, path: str, payload: Any, key: str, rank: int = 0) -> Reply | None:
        """What is sent for a request; None to close without an answer."""
        if self.redirect:
            return 307, b""
        if path == "/health":
            return self.health
        if path == "/version":
            if self.version is None:
                return 404, b'{"detail":"Not Found"}'
            return 200, json.dumps({"version": self.version}).encode()
        if path == "/metrics":
            return self.metrics or (200, self.exposition().encode())
        guarded = path not in OPEN if self.door else path.startswith("/v1/")
        if guarded and self.key is not None and key != f"Bearer {self.key}":
            return 401, b'{"error":"Unauthorized"}'
        if path == "/v1/models":
            rows = [
                {"id": m, "object": "model", "max_model_len": self.max_model_len}
                for m in self.models
            ]
            return 200, json.dumps({"object": "list", "data": rows}).encode()
        if path == "/tokenize" and method == "POST" and self.tokenizes:
            count = tokens_of(payload["prompt"])
            return 200, json.dumps({"count": count, "max_model_len": self.max_model_len}).encode()
        if path in ("/v1/completions", "/invocations") and method == "POST":
            self.completions.append(payload)
            return (
                self.on_completion(payload) if self.on_completion else self.complete(payload, rank)
            )
        if path == "/v1/chat/completions" and method == "POST":
            return self.on_chat(payload) if self.on_chat else self.chat(payload)
        return 404, b'{"detail":"Not Found"}'

    def complete(self, payload: Mapping[str, Any], rank: int = 0) -> Reply:
        """A sampled completion, and the counters it moves."""
        if payload["model"] not in self.models:
            return error(404, f"The model `{payload['model']}` does not exist.", "NotFoundError")
        tokens = int(payload["max_tokens"])
        prompted = tokens_of(payload["prompt"])
        if prompted + tokens > self.max_model_len:
            return error(400, f"This model's maximum context length is {self.max_model_len} tokens")
        name, engine = list(self.engines.items())[rank]
        engine.prompt_tokens += prompted
        engine.generation_tokens += tokens
        engine.first_tokens += 1
        if self.drafting and name not in self.undrafted_engines:
            engine.draft(max(tokens // 4, 1), self.rates)
        seed = 0 if self.fixed_seed or self.greedy else payload["seed"]
        prompt = payload["prompt"]
        if self.crossed and "at-once" in prompt:  # of the gate's several requests
            prompt, seed = "", 0
        body = completion(prompt, seed, tokens, self.greedy or payload["temperature"] == 0)
        if name in self.spoil:
            self.spoil[name](body["choices"][0])
        if not self._garbles_now():
            told = found_again(prompt, prompted <= self.reads_tokens)
            body["choices"][0]["text"] = told + body["choices"][0]["text"]
        if self.obeys_stop and payload.get("stop"):
            stop_at(body, payload["stop"])
        return 200, json.dumps(body).encode()

    def _garbles_now(self) -> bool:
        idle_s, self._worked_at = self.clock() - self._worked_at, self.clock()
        of_the_process = self._process in self.garbled_processes
        return self.garbles or of_the_process or idle_s >= self.garbles_after_s

    def chat(self, payload: Mapping[str, Any]) -> Reply:
        """A thinking answer: all of it in `reasoning`, in `content` the total of sums alone; a call if
        there are tools."""
        body = completion(payload["messages"][-1]["content"], 0, int(payload["max_tokens"]))
        text = body["choices"][0]["text"]
        message: dict[str, Any] = {"role": "assistant", "content": None, "reasoning": text}
        total = reckoned(payload["messages"][-1]["content"])
        if total is not None:
            message["content"] = text if self.rambles else f"Answer: {total}"
        if payload.get("response_format"):
            schema = payload["response_format"]["json_schema"]["schema"]
            message["content"] = json.dumps(of_schema(schema))
        if payload.get("tools"):
            message["tool_calls"] = [tool_call(payload["tools"][0]["function"])]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
        return 200, json.dumps({**body, "choices": [choice]}).encode()

    def exposition(self) -> str:
        """The needed families, with the _created series and others that a reader must skip."""
        lines = [f"process_start_time_seconds {self.process_start}", "python_info 1.0"]
        for name, engine in self.engines.items():
            labels = f'engine="{name}",model_name="{MODEL}"'
            values = {
                "prompt_tokens_total": engine.prompt_tokens,
                "generation_tokens_total": engine.generation_tokens,
                "time_to_first_token_seconds_count": engine.first_tokens,
                "num_requests_running": engine.running,
                "num_requests_waiting": engine.waiting,
                "kv_cache_usage_perc": engine.cache_usage,
            }
            if self.speculates:
                values |= {
                    "spec_decode_num_drafts_total": engine.drafts,
                    "spec_decode_num_draft_tokens_total": engine.drafts * 4,
                    "spec_decode_num_accepted_tokens_total": sum(engine.accepted_at),
                }
                for position, value in enumerate(engine.accepted_at):
                    at = f'{labels},position="{position}"'
                    family = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
                    lines.append(f"{family}{{{at}}} {float(value)}")
            for family, number in values.items():
                lines.append(f"vllm:{family}{{{labels}}} {float(number)}")
                if family.endswith("_total"):
                    created = family.removesuffix("_total") + "_created"
                    lines.append(f"vllm:{created}{{{labels}}} 1.7959578e+09")
        return "\n".join(lines) + "\n"


@contextlib.contextmanager
def scripted_server(**fields: Any) -> Iterator[ScriptedServer]:
    """A scripted server that is gone at the end."""
    server = ScriptedServer(**fields)
    try:
        yield server
    finally:
        server.gone()


def completion(prompt: str, seed: int, tokens: int, greedy: bool = False) -> dict[str, Any]:
    """A completion body as vLLM writes it, drawn by prompt and seed."""
    draw = random.Random(f"{prompt}/{seed}")
    ids = [draw.randrange(VOCABULARY) for _ in range(tokens)]
    names = [f" w{i}" for i in ids]
    top = [-0.5 - draw.random() for _ in ids]
    own = [t if greedy or draw.random() < 0.2 else t - 5 * draw.random() for t in top]
    rows = [
        {name: value} if value == best else {name: value, " best": best}
        for name, value, best in zip(names, own, top, strict=True)
    ]
    choice = {
        "index": 0,
        "text": "".join(names),
        "logprobs": {"token_logprobs": own, "tokens": names, "top_logprobs": rows},
        "finish_reason": "length",
        "token_ids": ids,
    }
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    return {"object": "text_completion", "model": MODEL, "choices": [choice], "usage": usage}


def stop_at(body: dict[str, Any], stops: list[str]) -> None:
    """End a completion before the first of its stop strings, if one is there."""
    choice = body["choices"][0]
    found = [(choice["text"].index(stop), stop) for stop in stops if stop in choice["text"]]
    if found:
        at, stop = min(found)
        choice |= {"text": choice["text"][:at], "finish_reason": "stop", "stop_reason": stop}
        body["usage"] |= {"completion_tokens": 1, "total_tokens": 21}


def of_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A word for each property of a JSON schema."""
    return dict.fromkeys(schema["properties"], "Elbe")


def tool_call(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a function with a word for each of its arguments."""
    arguments = json.dumps(of_schema(function["parameters"]))
    called = {"name": function["name"], "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": called}


def chunks(body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A completion or chat answer as the chunks of its stream: four words each, counted."""
    choice = body["choices"][0]
    message = choice.get("message")
    for delta in deltas(message or {}):
        yield {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    name = "text" if message is None else "reasoning"
    told = choice["text"] if message is None else message["reasoning"]
    words = re.findall(r"\s*\S+", told) or [""]
    for seen in range(4, len(words) + 4, 4):
        part, seen = "".join(words[seen - 4 : seen]), min(seen, len(words))
        ended = choice["finish_reason"] if seen == len(words) else None
        held = {name: part} if message is None else {"delta": {name: part}}
        usage = {"prompt_tokens": 20, "completion_tokens": seen, "total_tokens": 20 + seen}
        yield {"choices": [{"index": 0, **held, "finish_reason": ended}], "usage": usage}


def deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The content and the calls of a message in pieces of a few letters, as a stream brings them."""
    for piece in re.findall("(?s).{1,7}", message.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {
            "tool_calls": [{"index": index, "id": "call_1", "function": {"name": function["name"]}}]
        }
        for piece in re.findall("(?s).{1,7}", function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def tokens_of(prompt: str) -> int:
    """What its tokenizer would count: a token each four characters."""
    return len(prompt) // 4 + 1


def found_again(prompt: str, reads: bool) -> str:
    """What a model goes on with after "Page N again. Number": that page, or any other."""
    asked = re.search(r"Page (\d+) again\. Number$", prompt)
    if asked is None:
        return ""
    page = asked[1] if reads else str(int(asked[1]) + 1)
    found = re.search(rf"^Page {page}\. Number( .*)", prompt, re.MULTILINE)
    return found[1] if found else ""


def reckoned(prompt: str) -> int | None:
    """The total of a chain of sums, None of a prompt that is none."""
    begins = re.match(r"Begin with (\d+) ", prompt)
    if begins is None:
        return None
    total = int(begins[1])
    for sign, number in re.findall(r"^\d+\. (\w+).* (\d+)$", prompt, re.MULTILINE):
        by = int(number)
        total = {
            "add": total + by, "take": total - by, "multiply": total * by, "divide": total // by
        }[sign]  # fmt: skip
    return total


def error(status: int, message: str, kind: str = "BadRequestError") -> Reply:
    """An error body as vLLM writes it."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return status, json.dumps(body).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    # Probes come one by one, but a test may ask from many threads.
    request_queue_size = 64

    def __init__(self, script: ScriptedServer) -> None:
        self.script = script
        super().__init__(("127.0.0.1", script.port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        self._reply(None)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        self._reply(json.loads(self.rfile.read(length) or b"null"))

    def _reply(self, payload: Any) -> None:
        script = self.server.script
        key = self.headers.get("Authorization", "")
        rank = int(self.headers.get("X-data-parallel-rank", 0)) * script.takes_ranks
        reply = script.answer(self.command, self.path, payload, key, rank)
        if reply is None:
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        status, body = reply
        if status == 200 and isinstance(payload, dict) and payload.get("stream"):
            self._stream(json.loads(body))
            return
        self.send_response(status)
        if status == 307:
            self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if script.drip_s and payload is not None:
            for byte in body:
                self.wfile.write(bytes([byte]))
                time.sleep(script.drip_s)
            return
        self.wfile.write(body)

    def _stream(self, body: Mapping[str, Any]) -> None:
        script = self.server.script
        self.protocol_version = "HTTP/1.1"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for chunk in chunks(body):
            time.sleep(script.pause_s)
            self._event(json.dumps(chunk))
        if script.stream_usage:
            self._event(json.dumps({"choices": [], "usage": body["usage"]}))
        if script.stream_done:
            self._event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""
