"""The same way in containers: compose replaces one release by the other and goes back, under
requests that are counted.

Every step is a command that an operator gives. Compose ends a container before it starts the next:
nothing answers for as long as a start takes, and what is asked meanwhile is told apart. An answer
of which a word has come must come whole, unless it takes more than the recipe's shutdown-timeout.
"""

from __future__ import annotations

import enum
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from itertools import count, cycle, pairwise

from deploy import recipe
from deploy.containers import cli
from deploy.containers.compose import Compose, run_program
from deploy.recipe import Profile, release
from deploy.rehearsal.environment import QWEN
from deploy.rehearsal.errors import RehearsalError
from deploy.rehearsal.supervisor import HOST, ROOT, free_port

PROJECT = "dspark-rocm-upgrade"
PREVIOUS = "dspark-rocm/server:rehearsal-previous"
CLIENTS = 3
"""Requests at any time, fewer than the server takes, so that none waits in a queue."""
TOKENS = (24, 48, 96)
"""What they ask for in turn."""
ANSWERS = 12
"""Of a release before it is replaced."""

_AGAIN_S, _LOOK_S = 0.5, 0.2
# Variables that decide what runs; the rest of the user's holds, mirrors and CA_FILE among it.
_OWN = ("API_KEY_FILE", "BASE_IMAGE", "HEALTH_IMAGE", "SERVER_BIND", "SERVER_IMAGE")
_ENDS_WELL = re.compile(rb'"finish_reason":\s*"(stop|length)".*\ndata: \[DONE\]\s*$', re.DOTALL)
_WORD = re.compile(rb'"text":\s*"[^"]')


class Outcome(enum.Enum):
    """How a request ended."""

    ANSWERED = "answered"
    """Whole."""
    REFUSED = "refused"
    """No connection, or one that was closed before a word of HTTP."""
    TURNED_AWAY = "turned away"
    """An error instead of an answer, as of a server that drains."""
    BROKEN = "broken"
    """A word of it came, or its time was spent, and it did not come whole."""


@dataclass(frozen=True)
class Request:
    """One request that ended, by the clock of this machine, which is the engine's too."""

    sent_at: float
    ended_at: float
    outcome: Outcome


@dataclass(frozen=True)
class Phase:
    """What ended while a release served, or while it was replaced: `stopped_at` is then when its
    server was told to end."""

    name: str
    requests: Sequence[Request]
    stopped_at: float | None = None

    def of(self, outcome: Outcome) -> list[Request]:
        """Those that ended so."""
        return [each for each in self.requests if each.outcome is outcome]

    @property
    def drained(self) -> int:
        """Answers that were under way when the server was told to end, and came whole."""
        at = self.stopped_at or 0.0
        return sum(each.sent_at < at < each.ended_at for each in self.of(Outcome.ANSWERED))

    def lost(self, drain_s: float) -> int:
        """Answers that broke off before a drain of `drain_s` was over."""
        over = float("inf") if self.stopped_at is None else self.stopped_at + drain_s
        return sum(each.ended_at < over for each in self.of(Outcome.BROKEN))

    @property
    def silence_s(self) -> float:
        """The longest time between the ends of two answers."""
        ends = sorted(each.ended_at for each in self.of(Outcome.ANSWERED))
        return max((b - a for a, b in pairwise(ends)), default=0.0)


def run(before: str, after: str, say: Callable[[str], None]) -> int:
    """Roll from one release to the other and back, print what was counted and the verdict: 0 no
    answer was lost, 1 one was, or none was under way.

    Raises RehearsalError where a step fails, HostError without an engine.
    """
    profile = recipe.load().profile(QWEN)
    _refuse_running(profile)
    port = free_port()
    environ = {key: value for key, value in os.environ.items() if key not in _OWN}
    environ |= {"COMPOSE_PROJECT_NAME": PROJECT, "SERVER_PORT": str(port)}
    environ |= {"HEALTH_PORT": str(free_port())}

    def host(command: str, version: str, image: str = "") -> None:
        given = {**environ, release.VARIABLE: version, "SERVER_IMAGE": image}
        words = [sys.executable, "-m", "deploy", "containers", "--profile", QWEN, command]
        code = subprocess.run(words, cwd=ROOT, env=given, stdout=sys.stderr, check=False).returncode
        if code:
            raise RehearsalError(f"{command} of vLLM {version}: ended with {code}: see above")

    host("build", after)  # as an operator does, while the earlier one runs
    load = Load(port, profile)
    phases: list[Phase] = []
    try:
        host("up", before)
        with load.running():
            phases.append(load.served(before))
            for version, image in ((after, ""), (before, PREVIOUS)):
                say(f"replacing the server by vLLM {version}")
                began_at = time.time()
                host("up", version, image)
                phases.append(load.phase(f"to {version}", _stopped_at(began_at)))
                phases.append(load.served(version))
    finally:
        host("down", before)
    told, code = verdict(phases, float(profile.serve["shutdown-timeout"]))
    print(told)
    return code


def verdict(phases: Sequence[Phase], drain_s: float) -> tuple[str, int]:
    """What was counted, for a person, and the exit code."""
    heads = ("sent", *(each.value for each in Outcome), "drained", "silence")
    lines = ["".join(f"{head:>12}" for head in ("", *heads))]
    for phase in phases:
        counts = [len(phase.requests), *(len(phase.of(each)) for each in Outcome), phase.drained]
        cells = [phase.name, *map(str, counts), f"{phase.silence_s:.0f} s"]
        lines.append("".join(f"{cell:>12}" for cell in cells))
    lost = sum(phase.lost(drain_s) for phase in phases)
    idle = [phase.name for phase in phases if phase.stopped_at and not phase.drained]
    names = f"{phases[0].name} {' '.join(phase.name for phase in phases if phase.stopped_at)}"
    if lost:
        lines.append(f"hold vLLM {names}: {lost} answers broke off that the drain had time for")
    elif idle:
        lines.append(f"hold vLLM {names}: no answer was under way at the stop {', '.join(idle)}")
    else:
        lines.append(f"roll vLLM {names}: every answer under way at a stop came whole")
    return "\n".join(lines), int(bool(lost or idle))


class Load:
    """Requests to a server of this host, `CLIENTS` at any time, each of a seed of its own."""

    def __init__(self, port: int, profile: Profile) -> None:
        self._port, self._model = port, profile.served_model_name
        self._limit_s = profile.health.generation_timeout_s
        self._start_s = profile.health.start_budget_s
        self._requests: list[Request] = []
        self._numbers = count()
        self._over = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ask for as long as the context lasts."""
        threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def phase(self, name: str, stopped_at: float | None = None) -> Phase:
        """All that ended since the last phase."""
        ended, self._requests = self._requests, []
        return Phase(name, ended, stopped_at)

    def served(self, version: str) -> Phase:
        """The phase of a release, which is asked for its version and gives `ANSWERS` answers.

        Raises RehearsalError for another one, and for none in the profile's start budget.
        """
        try:
            with closing(HTTPConnection(HOST, self._port, timeout=self._limit_s)) as connection:
                connection.request("GET", "/version")
                told = json.loads(connection.getresponse().read())["version"]
        except (OSError, HTTPException, LookupError, ValueError) as error:
            raise RehearsalError(f"the server: says no version ({error}): see its log") from error
        if told.partition("+")[0] != version:
            raise RehearsalError(f"the server: is vLLM {told}: {version} was started: see its log")
        until = time.monotonic() + self._start_s
        while sum(each.outcome is Outcome.ANSWERED for each in self._requests) < ANSWERS:
            if time.monotonic() > until:
                raise RehearsalError(
                    f"vLLM {version}: no {ANSWERS} answers in {self._start_s:g} s: see its log"
                )
            time.sleep(_LOOK_S)
        return self.phase(version)

    def _work(self) -> None:
        for tokens in cycle(TOKENS):
            if self._over.is_set():
                return
            sent_at = time.time()
            outcome = self._ask(next(self._numbers), tokens)
            self._requests.append(Request(sent_at, time.time(), outcome))
            if outcome is not Outcome.ANSWERED:
                self._over.wait(_AGAIN_S)

    def _ask(self, number: int, tokens: int) -> Outcome:
        wanted = {"model": self._model, "prompt": f"request {number}", "stream": True}
        wanted |= {"seed": number, "temperature": 1.0, "max_tokens": tokens, "ignore_eos": True}
        body, seen = json.dumps(wanted), b""
        try:
            with closing(HTTPConnection(HOST, self._port, timeout=self._limit_s)) as connection:
                header = {"Content-Type": "application/json"}
                connection.request("POST", "/v1/completions", body, header)
                response = connection.getresponse()
                seen = b"HTTP"
                while more := response.read1():
                    seen += more
        except TimeoutError:
            return Outcome.BROKEN
        except (OSError, HTTPException):
            pass  # what came before says what it was
        if _ENDS_WELL.search(seen):
            return Outcome.ANSWERED
        if _WORD.search(seen):
            return Outcome.BROKEN
        return Outcome.TURNED_AWAY if seen else Outcome.REFUSED


def _refuse_running(profile: Profile) -> None:
    """Raises RehearsalError where containers of the rehearsal run, which `make down` would then no
    longer find."""
    file = cli.ENV_FILES / f"{profile.name}.env"
    asked = run_program(Compose(profile, file).command("ps", "--quiet"), capture=True)
    if file.exists() and asked.stdout.strip():
        raise RehearsalError(
            f"{profile.name}: its containers run: make down PROFILE={profile.name} first"
        )


def _stopped_at(since: float) -> float:
    """When compose told the server to end, as the engine recorded it. Raises RehearsalError."""
    asked = [
        f"label=com.docker.compose.{name}" for name in (f"project={PROJECT}", "service=server")
    ]
    filters = [f"--filter={each}" for each in ("type=container", "event=kill", *asked)]
    times = [f"--since={since:.3f}", f"--until={time.time():.3f}", "--format={{.TimeNano}}"]
    told = run_program(["docker", "events", *times, *filters], capture=True).stdout.split()
    if not told:
        raise RehearsalError("docker events: no server was told to end: see compose's lines above")
    return int(told[0]) / 1e9


__all__: Sequence[str] = ("Load", "Outcome", "Phase", "Request", "run", "verdict")
