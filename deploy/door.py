"""The door before vLLM's routes: with a key set, all but a few paths ask for it.

vLLM 0.27.1 asks under /v1, /v2, /inference and /cohere alone (entrypoints/serve/utils,
GUARDED_PREFIX; the same to 0.33.0). Without the key /invocations and /generative_scoring generate,
/scale_elastic_ep, /fault_tolerance/apply, /start_profile and, in its development mode, /pause,
/sleep, /update_weights and /collective_rpc act, /tokenize and /pooling work, /docs and /load tell.
The plan adds it as the last `--middleware`, which is the outermost.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

KEY = "VLLM_API_KEY"
#: As `--middleware` takes it.
NAME = "deploy.door.Door"
#: What a health service and Prometheus read; none of them takes work or tells of requests.
OPEN = frozenset({"/health", "/metrics", "/version"})

_BODY = b'{"error":"Unauthorized"}'  # as vLLM's own

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """ASGI middleware that lets nobody without the key of VLLM_API_KEY past the open paths.

    Preflights of CORS pass, as they carry no key and do nothing. Raises RuntimeError without a key.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._key = os.environ.get(KEY, "").encode()
        if not self._key:
            raise RuntimeError(f"{KEY}: is not set, and {NAME} asks for it; leave the door out")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer 401."""
        if scope["type"] not in ("http", "websocket") or self._passes(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})  # before it is accepted: 403
        else:
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(_BODY)).encode()),
                (b"www-authenticate", b"Bearer"),
            ]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _BODY})

    def _passes(self, scope: Scope) -> bool:
        if scope.get("method") == "OPTIONS":
            return True
        if str(scope["path"]).removeprefix(str(scope.get("root_path", ""))) in OPEN:
            return True
        given = next((v for k, v in scope["headers"] if k.lower() == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(key, self._key)
