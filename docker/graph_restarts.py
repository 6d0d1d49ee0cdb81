"""With graphs, a start whose gate fails by garbage is ended for a new one, a few times.

Whether HIP graphs replay rightly is decided for the whole life of a process (ROCm/clr issue 279),
so the next process may be well. What stands above the server asks the health service beside it, on
the open /startupz, ends the server when its gate has read garbage, and starts it again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping

from deploy import recipe
from deploy.recipe import switches
from healthcheck.client import Client
from healthcheck.client.answers import Failure
from healthcheck.reasons import GARBAGE

ASK_S = 5.0
POLL_S = 2.0
# An ended process gives a card's memory back over seconds.
SETTLE_S = 10.0
# What the server may take beyond its own shutdown-timeout.
GRACE_S = 15.0
_BODY_BYTES = 4096


class Restarts:
    """Ends starts that write garbage, `limit` of them at most.

    `ask` gives the words of the health service's verdict, None when it gave none. `say` gets a line
    for each thing done.
    """

    def __init__(
        self,
        ask: Callable[[], Collection[str] | None],
        limit: int,
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        self._ask = ask
        self._limit = limit
        self._grace_s = grace_s
        self._say = say
        self._ended = 0
        self._is_ending = False

    @contextlib.contextmanager
    def watching(self, server: subprocess.Popen[bytes]) -> Iterator[None]:
        """Watch over one start, which leads a process group; what an ended one leaves is killed."""
        over = threading.Event()
        self._is_ending = False
        thread = threading.Thread(target=self._watch, args=(server, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            if self._is_ending:
                # A worker that outlives its server would hold the memory of the next.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)

    def again(self, stopping: threading.Event) -> bool:
        """Whether the start that is over was ended for a new one, and nobody wants to stop; returns
        when the new one may begin."""
        return self._is_ending and not stopping.wait(SETTLE_S)

    def _watch(self, server: subprocess.Popen[bytes], over: threading.Event) -> None:
        # The health service may still speak of the start before: the first verdict without garbage
        # shows that it has seen this one.
        seen = False
        while not over.wait(POLL_S):
            words = self._ask()
            if words is None:
                continue
            codes = sorted(GARBAGE.intersection(words)) if "gate.failed" in words else []
            seen = seen or not codes
            if not seen or not codes:
                continue
            if self._ended >= self._limit:
                starts = self._ended + 1
                self._say(f"graphs gave garbage in {starts} starts: serve with DSPARK_GRAPHS=off")
                return
            self._ended += 1
            self._is_ending = True
            of = f"{self._ended} of at most {self._limit + 1}"
            self._say(f"graphs gave garbage ({', '.join(codes)}): ending start {of} for a new one")
            server.terminate()
            if not over.wait(self._grace_s):
                server.kill()
            return


def allowed(environ: Mapping[str, str]) -> Restarts:
    """The restarts that the environment's profile allows. Raises RecipeError."""
    profile = recipe.load(switches.recipe_file(environ)).profile(environ.get("DSPARK_PROFILE", ""))
    client = Client(switches.health_url(environ))

    def ask() -> Collection[str] | None:
        answer = client.get("/startupz", deadline_s=ASK_S, limit_bytes=_BODY_BYTES)
        if isinstance(answer, Failure) or answer.status not in (200, 503):
            return None
        words = answer.text.split()
        return None if "service.loop_stopped" in words else words  # a verdict of some time ago

    grace = float(profile.serve.get("shutdown-timeout", 0)) + GRACE_S
    return Restarts(ask, profile.health.graph_restarts, grace, to_stderr)


def to_stderr(line: str) -> None:
    """A line of the launcher's own."""
    print(f"launch: {line}", file=sys.stderr, flush=True)
