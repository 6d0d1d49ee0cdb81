"""Tool calls: one of two tools is asked for, with arguments that the question holds."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_RIVERS = ("Elbe", "Loire", "Tagus", "Vistula", "Tiber", "Danube", "Ebro", "Rhone", "Oder", "Drava")
_UNITS = ("centimetres", "metres", "feet")
MOST_TOKENS = 512


def _tool(name: str, description: str, **properties: Mapping[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    told = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": told}


TOOLS = (
    _tool(
        "water_level",
        "The present water level of a river at a station.",
        river={"type": "string", "description": "name of the river"},
        station={"type": "integer", "description": "number of the station"},
        unit={"type": "string", "enum": list(_UNITS)},
    ),
    _tool(
        "set_alarm",
        "Raise an alarm whenever a river at a station is above a level.",
        river={"type": "string", "description": "name of the river"},
        station={"type": "integer", "description": "number of the station"},
        level={"type": "integer", "description": "in centimetres"},
    ),
)


@dataclass(frozen=True)
class Call:
    """A question and the one call that answers it."""

    question: str
    name: str
    arguments: Mapping[str, object]

    def is_right(self, called: tuple[str, Mapping[str, Any]] | None) -> bool:
        """Whether a parsed call is that one."""
        return called == (self.name, self.arguments)


def make(seed: int, count: int) -> tuple[Call, ...]:
    """So many calls, every other of each tool; the same seed gives the same ones."""
    return tuple(_call(random.Random(f"calls/{seed}/{at}"), at) for at in range(count))


def _call(draw: random.Random, at: int) -> Call:
    place = {"river": draw.choice(_RIVERS), "station": draw.randint(100, 9999)}
    where = f"the {place['river']} at station {place['station']}"
    if at % 2:
        level = draw.randint(150, 900)
        question = f"Raise an alarm whenever {where} is above {level} centimetres. Use a tool."
        return Call(question, "set_alarm", {**place, "level": level})
    unit = draw.choice(_UNITS)
    question = f"What is the water level of {where} now, in {unit}? Use a tool."
    return Call(question, "water_level", {**place, "unit": unit})
