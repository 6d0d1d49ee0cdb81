"""Runs inside the vLLM of one tree: holds its draft class against a contract, then loads it.

    python3 -m patches.loadcheck.inside ASKED ANSWERED

Both are JSON files. ASKED: ``class``, ``speculative``, ``items`` (`patches.audit.contract.Item`)
and ``sources``, the files whose errors are the tree's own fault. ANSWERED: see `answer`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

from deploy import collector
from patches.errors import on_one_line
from patches.loadcheck import draft, tiny

NOT_IMPORTED, IMPORTED, LOADED = LEVELS = ("not imported", "imported", "loaded")
"""How far the check came. Imported: the class came through registry and platform dispatch, and what
a class has before it is made was read. Loaded: the speculator loaded it with dummy weights, and
every attribute was read off the object."""

_ABSENT = object()


def main(arguments: list[str]) -> int:
    """Answer one question file."""
    collector.rest()
    asked = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    Path(arguments[1]).write_text(json.dumps(answer(asked)), encoding="utf-8")
    return 0


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """The level reached, the faults found, and why no higher level was reached.

    Keys: ``level``, ``faults`` (one line each; none for a sound tree), ``stopped_by`` (None at the
    highest level, and after a fault), ``class``, ``read`` (the attributes that were seen).
    """
    found: dict[str, Any] = {
        "level": NOT_IMPORTED,
        "faults": [],
        "stopped_by": None,
        "class": None,
        "read": [],
    }
    try:
        draft.stand_on_cpu()
        draft.dispatch_to_amd()
        cls = draft.registered_class()
    except Exception as error:  # whatever importing raises is the answer
        return _stopped(found, error, asked, None)
    found["class"] = f"{cls.__module__}.{cls.__qualname__}"
    found["level"] = IMPORTED
    if found["class"] != asked["class"]:
        found["faults"] = [f"the dispatch gives {found['class']}, not {asked['class']}"]
        return found
    _hold(found, cls, [item for item in asked["items"] if item["on_class"]])
    if found["faults"]:
        return found
    try:
        loaded, target = _load(asked["speculative"])
    except Exception as error:  # the same
        return _stopped(found, error, asked, cls)
    found["level"] = LOADED
    _hold(found, loaded, asked["items"])
    if loaded.model.embed_tokens is not target.model.embed_tokens:
        found["faults"].append("the draft does not share the target's embedding")
    if loaded.lm_head is not target.lm_head:
        found["faults"].append("the draft does not share the target's lm_head")
    return found


def _load(speculative: dict[str, Any]) -> tuple[Any, Any]:
    """The draft that the speculator loaded with this configuration, and its target."""
    with tempfile.TemporaryDirectory() as folder:
        model = str(tiny.write_plain(Path(folder)))
        with draft.speculator(model, speculative) as (speculator, target):
            speculator.load_model(target)
            return speculator.model, target


def _hold(found: dict[str, Any], holder: Any, items: list[dict[str, Any]]) -> None:
    """Read every item off a class or an object; tell what is missing or has another value."""
    found["read"] = []
    for item in items:
        value = _read(holder, item["path"])
        if value is not _ABSENT:
            found["read"].append(item["path"])
        fault = _fault(item, value)
        if fault:
            found["faults"].append(fault)


def _read(holder: Any, path: str) -> Any:
    for name in path.split("."):
        holder = getattr(holder, name, _ABSENT)
        if holder is _ABSENT:
            break
    return holder


def _fault(item: dict[str, Any], value: Any) -> str | None:
    if value is _ABSENT:
        when = f" when {item['condition']}" if item["condition"] else ""
        missing = f"lacks {item['path']}, which {item['where']} reads{when}"
        return missing if item["is_required"] else None
    if "value" in item and (value != item["value"] or type(value) is not type(item["value"])):
        return f"has {item['path']} = {value!r}, and its source says {item['value']!r}"
    return None


def _stopped(
    found: dict[str, Any], error: Exception, asked: dict[str, Any], cls: Any
) -> dict[str, Any]:
    """Tell the tree's own fault from what the machine lacks."""
    told = on_one_line(error)
    if _is_of_tree(error, asked["sources"], cls):
        found["faults"] = [told]
    else:
        found["stopped_by"] = told
    return found


def _is_of_tree(error: Exception, sources: list[str], cls: Any) -> bool:
    """Whether the draft lacks something, or a file that was patched raised it itself."""
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0] == "vllm"
    if isinstance(error, AttributeError) and cls is not None and isinstance(error.obj, cls):
        return True
    frames = [f.filename for f in traceback.extract_tb(error.__traceback__)]
    return bool(frames) and str(Path(frames[-1]).resolve()) in sources


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
