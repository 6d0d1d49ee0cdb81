"""Runs inside the vLLM of one tree for one architecture: launches, compiles, and says what came.

    python3 -m patches.compile.inside ASKED ANSWERED

Both are JSON files. ASKED: ``root`` (of the tree), ``arch``, ``compute_units`` (vLLM asks for both
once), ``shapes`` (fields of `Shapes`, of each profile on such a card), ``launches`` (their names).
ANSWERED: see `answers`.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from deploy import collector
from patches.compile import stand
from patches.compile.launches import ALL
from patches.compile.recorder import Recorder
from patches.compile.shapes import Shapes
from patches.errors import on_one_line
from patches.loadcheck.card import CARDS


def main(arguments: list[str]) -> int:
    """Answer one question file, with a new answer before each launch."""
    collector.rest()
    asked = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    for said in answers(asked):
        Path(arguments[1]).write_text(json.dumps(said), encoding="utf-8")
    return 0


def answers(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Compile what the launches launch; what is known before each of them, and in the end.

    Keys: ``versions`` (of triton and torch), ``kernels`` (see `recorder.Kernel`), ``stopped`` (for
    each launch that raised, the profile and the error in one line), ``running`` (the launch and the
    profile that come next, None in the end): Triton's compiler ends its process where it asserts.
    """
    card = replace(CARDS[asked["arch"]], compute_units=asked["compute_units"])
    stand.stand(card)
    recorder = Recorder(card, Path(asked["root"]))
    recorder.install()
    versions = {name: importlib.import_module(name).__version__ for name in ("triton", "torch")}
    stopped: list[dict[str, str]] = []

    def said(running: dict[str, str] | None) -> dict[str, Any]:
        kernels = [asdict(kernel) for kernel in recorder.kernels]
        return {
            "versions": versions,
            "kernels": kernels,
            "stopped": stopped,
            "running": running,
        }

    for shapes in (Shapes(**given) for given in asked["shapes"]):
        for launch in ALL:
            if launch.name not in asked["launches"]:
                continue
            recorder.launch, recorder.profile = launch.name, shapes.profile
            running = {"launch": launch.name, "profile": shapes.profile}
            yield said(running)
            try:
                launch.run(shapes)
            except Exception as error:  # the tree's, or what the machine lacks
                told = on_one_line(error)
                stopped.append({**running, "why": told[:600]})
    yield said(None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
