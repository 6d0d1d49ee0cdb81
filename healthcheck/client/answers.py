"""What a question to a server can come back as: an Answer, or a Failure to get one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum

# Each object or list takes up to a hundred times the bytes that say it. A completion of 320 tokens
# has one a token.
MOST_BRACKETS = 20_000


class FailureKind(StrEnum):
    """Why there is no answer. What `Failure.gone` names says something about the server by itself;
    the rest say that we could not tell."""

    REFUSED = "refused"  # nothing listens on the port
    RESET = "reset"  # the connection was closed before an answer; a port proxy does so for refused
    UNRESOLVED = "unresolved"  # the host name has no address; a container's goes with it
    TLS = "tls"  # no encrypted connection came about
    TIMEOUT = "timeout"
    TRUNCATED = "truncated"  # the body ended before its announced end
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"  # not HTTP, not JSON, or not the exposition format
    UNREACHABLE = "unreachable"  # no route and the like
    ABORTED = "aborted"  # we gave up on purpose


@dataclass(frozen=True)
class Failure:
    """No usable answer: its kind, one line of detail, and the seconds spent."""

    kind: FailureKind
    detail: str = ""
    elapsed_s: float = 0.0

    @property
    def closed(self) -> bool:
        """No process is there. The published port of a dead container accepts and closes, which is
        as good as refused."""
        return self.kind in (FailureKind.REFUSED, FailureKind.RESET)

    @property
    def gone(self) -> bool:
        """No client gets through. Of a name or a certificate the process may know nothing."""
        return self.closed or self.kind in (FailureKind.UNRESOLVED, FailureKind.TLS)

    @property
    def code(self) -> str:
        """The reason that names it."""
        return "server.unknown" if self.kind is FailureKind.ABORTED else f"server.{self.kind}"


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer: status, body, and the seconds it took."""

    status: int
    body: bytes = field(default=b"", repr=False)
    elapsed_s: float = 0.0

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", errors="replace")

    def json(self) -> object | Failure:
        """The body as a JSON value, or a Failure; what would take many times its size is one."""
        brackets = self.body.count(b"{") + self.body.count(b"[")
        if brackets > MOST_BRACKETS:
            detail = f"{brackets} objects and lists in one answer"
            return Failure(FailureKind.TOO_LARGE, detail, self.elapsed_s)
        try:
            value: object = json.loads(self.body)
        except (ValueError, RecursionError) as e:
            return Failure(FailureKind.MALFORMED, f"not JSON: {e}"[:200], self.elapsed_s)
        return value
