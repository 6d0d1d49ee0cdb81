"""What others build on, against what the programs put out: schemas, metrics, exit codes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from healthcheck import smoke
from healthcheck.client.exposition import Speculation
from healthcheck.judge import Outcome
from healthcheck.judge.acceptance import Acceptance
from healthcheck.reasons import Note
from healthcheck.service import report, settings
from healthcheck.service.cause import Cause
from healthcheck.service.snapshot import Snapshot
from healthcheck.signs.model import Card, Compiler, Ended, Process, Signs
from healthcheck.smoke.figures import Spread
from healthcheck.smoke.results import SCHEMA, Check, LeftOut, Level, LongPrompt, SpeedUp
from healthcheck.verdict import State
from tests.support.scripted_server import Engine, ScriptedServer, scripted_server
from tests.support.simulation import Simulation

HERE = Path(__file__).resolve().parents[2] / "healthcheck"
PAGE = (HERE / "API.md").read_text("utf-8")

SIGNS = Signs(
    at=1.0,
    started=0.0,
    boot="b",
    processes=(Process("VLLM::Worker", 7, "S", 0.5, 0.7, 12.5, 40, 1 << 30),),
    compilers=(Compiler("hipcc", 0.2, 3.0),),
    cards=(Card("0", 97, 0.9, 1 << 30, 2 << 30, 0, 1, None),),
    memory_bytes=5,
    memory_limit_bytes=None,
    oom_kills=0,
    ended=(Ended("VLLM::EngineCore", 6, 0.3, signal="SIGKILL", by_oom=True),),
)


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """The file, which is a JSON Schema by itself."""
    made: dict[str, Any] = json.loads((HERE / f"{name}.schema.json").read_text("utf-8"))
    jsonschema.Draft202012Validator.check_schema(made)
    return made


def closed(made: Any) -> Any:
    """The schema without room for a field that it does not name: readers may meet new ones, but
    whoever adds one has to write it down."""
    if isinstance(made, list):
        return [closed(item) for item in made]
    if not isinstance(made, dict):
        return made
    own = {key: closed(value) for key, value in made.items()}
    return {**own, "additionalProperties": False} if "properties" in made else own


@functools.cache
def validator(name: str) -> Any:
    """What holds a report against the closed schema."""
    return jsonschema.Draft202012Validator(closed(schema(name)))


def fits(name: str, data: object) -> None:
    """Raises jsonschema.ValidationError for what the file does not promise, whole and no more."""
    validator(name).validate(json.loads(json.dumps(data)))


# --- /report --------------------------------------------------------------------------------------


def shown(made: Simulation) -> dict[str, Any]:
    """The report of the present moment."""
    return report.as_json(made.loop.snapshot, settings.make("mi355x"), made.now)


def down(server: ScriptedServer) -> None:
    server.down()


def hangs(server: ScriptedServer) -> None:
    server.hung = True
    server.engines["0"].running = 1


def dies(server: ScriptedServer) -> None:
    server.health = (503, b"")


@pytest.mark.parametrize(
    ("fault", "until"),
    [(down, State.DEAD), (dies, State.DEAD), (hangs, State.STALLED)],
)
def test_the_report_fits_its_schema_in_every_state(
    fault: Callable[[ScriptedServer], None], until: State
) -> None:
    """From the first look through the gate to each way down, once for each set of reasons."""
    seen: dict[tuple[str, ...], dict[str, Any]] = {}

    def keep() -> None:
        data = shown(made)
        seen[data["state"], *(reason["code"] for reason in data["reasons"])] = data

    with scripted_server() as server:
        server.engines["1"] = Engine()
        made = Simulation(server)
        made.run(600, each=lambda _: keep(), until=[State.READY])
        fault(server)
        made.run(1500, each=lambda _: keep(), until=[until])
        keep()
    assert {"LOADING", "SMOKE", until.value} <= {state for state, *_ in seen}
    for data in seen.values():
        fits("report", data)


def full(made: Simulation) -> Snapshot:
    """A snapshot that has everything that a report may show."""
    memory = made.loop.snapshot.memory
    window = Speculation(128, 640, 300, (90, 70, 60, 50, 30))
    engines = {
        name: replace(e, windows=(window,), sample=replace(e.sample, speculation=window))
        for name, e in memory.engines.items()
    }
    return replace(
        made.loop.snapshot,
        memory=replace(memory, engines=engines, signs=SIGNS),
        cause=Cause("hip.oom", "line", "remedy", "source"),
        provenance={"series": {"sha256": "0"}},
        errors={"turn": 1},
        verdict=replace(made.loop.snapshot.verdict, notes=(Note("operator.drain"),)),
    )


def test_the_report_fits_its_schema_with_all_that_it_can_show() -> None:
    """Signs, a cause, windows of traffic and provenance as well; and a field more does not."""
    with scripted_server() as server:
        made = Simulation(server)
        made.to_ready()
        data = report.as_json(full(made), settings.make("mi355x"), made.now)
    assert data["signs"]["cards"] and data["engines"]["0"]["last_window"]
    fits("report", data)
    with pytest.raises(jsonschema.ValidationError):
        fits("report", {**data, "new": 1})
    with pytest.raises(jsonschema.ValidationError):
        fits("report", {**data, "ready": "yes"})


# --- the smoke test -------------------------------------------------------------------------------


def whole() -> smoke.Report:
    """A report of the smoke test with every figure."""
    spread = Spread.of([0.1, 0.2])
    made = smoke.Report("http://h", "mi355x", "unverified", "m", vllm_version="0.27.1")
    made.checks = [Check("chat", Outcome.BAD, "empty", 0.3, "text.empty")]
    made.left_out = [LeftOut("tools", "no parser")]
    made.acceptance = Acceptance.of(Speculation(100, 500, 200, (90, 60, 50)))
    made.reference = {"source": "PR"}
    made.levels = [Level(1, 8, 0, 700, 9.0, 77.0, spread, spread, 3.1, (70.0, 80.0))]
    made.long_prompts = [LongPrompt(1000, 0.5, None)]
    made.speed_up = SpeedUp("http://plain", 1.5, 1.4, 1.6, 8)
    made.timings_s = {"total": 9.0}
    made.cause = {"id": "hip.oom"}
    return made


@pytest.mark.parametrize("made", [whole(), smoke.Report("t", "p", "e", "m")], ids=["full", "empty"])
def test_the_smoke_report_fits_its_schema(made: smoke.Report) -> None:
    """With every figure and with none."""
    fits("smoke", json.loads(made.as_json()))


def test_the_schemas_say_the_number_that_the_reports_do() -> None:
    """Whoever raises one writes the other."""
    numbers = [schema(n)["properties"]["schema"]["const"] for n in ("report", "smoke")]
    assert numbers == [report.SCHEMA, SCHEMA]


# --- the page -------------------------------------------------------------------------------------


def test_the_table_of_metrics_is_what_is_exported() -> None:
    """Every family with its kind and labels, and no other."""
    with scripted_server() as server:
        made = Simulation(server)
        made.to_ready()
        families = list(report.metrics(full(made), made.now, True))
    exported = {
        (f.name + ("_total" if f.type == "counter" else ""), f.type, " ".join(sorted(labels(f))))
        for f in families
    }
    told = re.findall(r"^\| `(\w+)` \| (gauge|counter) \| ([\w, ]*?) *\|", PAGE, re.MULTILINE)
    assert {
        (n, kind, " ".join(sorted(ls.split(", ") if ls else []))) for n, kind, ls in told
    } == exported


def labels(family: Any) -> set[str]:
    """The labels of a family's samples."""
    return {name for sample in family.samples for name in sample.labels}
