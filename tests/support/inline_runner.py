"""Generations without a thread, for tests that drive the loop by hand."""

from __future__ import annotations

from dataclasses import replace

from healthcheck.service.generate import Generator
from healthcheck.verdict import Generation, Outstanding, Want


class InlineRunner:
    """Runs each generation to its end inside `start`."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._finished: Generation | None = None

    def start(self, want: Want, model: str, now: float) -> None:
        """Run it; its times are `now`, whatever it took."""
        finished = self._generator.run(want, model)
        self._finished = replace(finished, started_at=now, ended_at=now)

    def poll(self, now: float) -> tuple[Generation | None, Outstanding | None]:
        """The one that `start` ran."""
        del now
        finished, self._finished = self._finished, None
        return finished, None

    def stop(self) -> None:
        """Nothing runs between turns."""

    def end(self) -> None:
        """Nor is there a thread."""
