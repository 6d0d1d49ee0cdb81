"""A kubelet for the probes of one pod: periods, thresholds, start-up gating, restarts.

It reads the pod as rendered and asks whatever `ask` reaches, a real server or a verdict held in
memory, at the moments kubelet would. Time is its own and in seconds: `pace` is told how long to
wait, so a real clock sleeps there and a test moves its world.

From Kubernetes' documentation of probes and of sidecar containers:
- a container's liveness and readiness probes begin when its startup probe has passed;
- the first question comes `initialDelaySeconds` after the container's start, then one a period;
- `failureThreshold` failures in a row of startup or liveness restart that container alone, after
  its preStop hook and grace period; of readiness they only take it out of rotation;
- a restarted container starts anew: startup probe, delays and counts;
- kubelet keeps its counts in memory: after a restart of its own it asks startup probes anew;
- a pod is Ready when all its containers are, restartable init containers among them.
Left out: kubelet's random first offset (at most one period), and how it reckons its back-off between
restarts, which is told.
"""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

KINDS = ("startup", "liveness", "readiness")
DEFAULT_GRACE_S = 30


@dataclass(frozen=True)
class Probe:
    """One httpGet probe of a container; durations in seconds."""

    container: str
    kind: str
    port: int
    path: str
    initial_delay_s: int
    period_s: int
    timeout_s: int
    success_threshold: int
    failure_threshold: int
    grace_s: int


@dataclass(frozen=True)
class Event:
    """Something kubelet did: `what` is started, ready, unready, killed or restarted."""

    at: float
    container: str
    what: str
    why: str = ""


@dataclass
class _Worker:
    """One probe's running count."""

    probe: Probe
    due: float
    streak: int = 0
    streak_good: bool = True


@dataclass
class _Container:
    name: str
    probes: tuple[Probe, ...]
    started: bool = False
    ready: bool = False
    down_until: float | None = None
    workers: list[_Worker] = field(default_factory=list)


def probes(pod: Mapping[str, Any]) -> list[Probe]:
    """The httpGet probes of a pod template's `spec`, with Kubernetes' defaults filled in.

    Raises ValueError for a probe of another kind, or one whose port is a name: kubelet would look
    that up in the container that has the probe, which is not the one that answers.
    """
    found = []
    for container in _running(pod):
        for kind in KINDS:
            table = container.get(f"{kind}Probe")
            if table is None:
                continue
            get = table.get("httpGet")
            if get is None or not isinstance(get["port"], int):
                raise ValueError(f"{container['name']}: {kind} is no httpGet of a numeric port")
            grace = table.get(
                "terminationGracePeriodSeconds",
                pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S),
            )
            found.append(
                Probe(
                    container["name"],
                    kind,
                    get["port"],
                    get.get("path", "/"),
                    table.get("initialDelaySeconds", 0),
                    table.get("periodSeconds", 10),
                    table.get("timeoutSeconds", 1),
                    table.get("successThreshold", 1),
                    table.get("failureThreshold", 3),
                    grace,
                )
            )
    return found


def over_http(host: str, ports: Mapping[int, int] | None = None) -> Callable[[Probe], bool]:
    """Ask as kubelet does: a GET, good from 200 to 399, bad on any error and after the timeout.

    `ports` maps a pod's port to the one where it can be reached here.
    """

    def ask(probe: Probe) -> bool:
        port = (ports or {}).get(probe.port, probe.port)
        connection = http.client.HTTPConnection(host, port, timeout=probe.timeout_s)
        try:
            connection.request("GET", probe.path, headers={"User-Agent": "kube-probe/1.33"})
            return 200 <= connection.getresponse().status < 400
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    return ask


class Kubelet:
    """Runs one pod's probes.

    `restart` is called with a container's name when that has gone down, `stop_s` says how long it
    takes to go (at most the grace period of the probe that failed).
    """

    def __init__(
        self,
        pod: Mapping[str, Any],
        ask: Callable[[Probe], bool],
        pace: Callable[[float], None],
        restart: Callable[[str], None] = lambda _: None,
        stop_s: float = 0.0,
    ) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self._ask = ask
        self._pace = pace
        self._restart = restart
        self._stop_s = stop_s
        every = probes(pod)
        self._containers = [
            _Container(c["name"], tuple(p for p in every if p.container == c["name"]))
            for c in _running(pod)
        ]
        for container in self._containers:
            self._begin(container)

    @property
    def pod_ready(self) -> bool:
        """Whether a Service would send work to the pod."""
        return all(c.ready for c in self._containers)

    def restarts(self, container: str) -> int:
        """How often the container was restarted, by kubelet or after a crash."""
        return sum(e.container == container and e.what == "restarted" for e in self.events)

    def when(self, container: str, what: str) -> list[float]:
        """The times of one kind of event."""
        return [e.at for e in self.events if (e.container, e.what) == (container, what)]

    def crash(self, name: str, back_off_s: float = 0.0) -> None:
        """The container's process ended by itself; it is started again after kubelet's back-off."""
        container = next(c for c in self._containers if c.name == name)
        self._set_ready(container, False, "it ended")
        if back_off_s:
            container.down_until = self.now + back_off_s
        else:
            self._begin(container, again=True)

    def begin_anew(self) -> None:
        """kubelet itself ends and begins: what it had counted is void, and every container that has
        a startup probe is asked whether it has started; none is restarted for it."""
        for container in self._containers:
            ready = container.ready
            self._begin(container)
            container.ready = ready
            for worker in container.workers:
                worker.due = self.now  # the delay is one since the container's start

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        end = self.now + seconds
        while True:
            at = min(self._next(), end)
            if at > self.now:
                self._pace(at - self.now)
                self.now = at
            if not self._turn():
                return
            if self.now >= end and self._next() > end:
                return

    def _next(self) -> float:
        times = [w.due for c in self._containers for w in self._active(c)]
        times += [c.down_until for c in self._containers if c.down_until is not None]
        return min(times, default=float("inf"))

    def _turn(self) -> bool:
        """Everything due now. False if nothing was, as at the end of a run."""
        acted = False
        for container in self._containers:
            if container.down_until is not None and container.down_until <= self.now:
                self._restart(container.name)
                self._begin(container, again=True)
                acted = True
            for worker in list(self._active(container)):
                if worker.due <= self.now and worker in container.workers:
                    worker.due = self.now + worker.probe.period_s
                    self._count(container, worker, self._ask(worker.probe))
                    acted = True
        return acted

    def _active(self, container: _Container) -> Iterable[_Worker]:
        if container.down_until is not None:
            return []
        return [w for w in container.workers if (w.probe.kind == "startup") != container.started]

    def _begin(self, container: _Container, again: bool = False) -> None:
        container.down_until = None
        container.started = not any(p.kind == "startup" for p in container.probes)
        container.workers = [_Worker(p, self.now + p.initial_delay_s) for p in container.probes]
        if again:
            self._say(container, "restarted")
        if container.started:
            self._is_started(container)

    def _is_started(self, container: _Container) -> None:
        container.started = True
        self._say(container, "started")
        for worker in container.workers:
            worker.due = max(worker.due, self.now)
        if not any(p.kind == "readiness" for p in container.probes):
            self._set_ready(container, True, "")

    def _count(self, container: _Container, worker: _Worker, good: bool) -> None:
        probe = worker.probe
        worker.streak = worker.streak + 1 if good == worker.streak_good else 1
        worker.streak_good = good
        needed = probe.success_threshold if good else probe.failure_threshold
        if worker.streak < needed:
            return
        if probe.kind == "readiness":
            self._set_ready(container, good, f"{worker.streak} answers in a row")
        elif not good:
            self._kill(container, probe)
        elif probe.kind == "startup":
            self._is_started(container)

    def _kill(self, container: _Container, probe: Probe) -> None:
        self._say(container, "killed", f"{probe.kind} {probe.path}")
        self._set_ready(container, False, "it was killed")
        container.down_until = self.now + min(self._stop_s, probe.grace_s)

    def _set_ready(self, container: _Container, ready: bool, why: str) -> None:
        if ready != container.ready:
            container.ready = ready
            self._say(container, "ready" if ready else "unready", why)

    def _say(self, container: _Container, what: str, why: str = "") -> None:
        self.events.append(Event(self.now, container.name, what, why))


def _running(pod: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The containers that run together: native sidecars first, then the others."""
    sidecars = [c for c in pod.get("initContainers", []) if c.get("restartPolicy") == "Always"]
    return [*sidecars, *pod["containers"]]
