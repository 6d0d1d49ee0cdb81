"""What the speculative configuration of a server sets, and what it leaves at the tree's defaults.

With such a configuration given, conditions on its options are decided: by the value given, or by
the default of vLLM's ``SpeculativeConfig`` where nothing else of vLLM's configuration sets it.
"""

import ast
import difflib
import json
import re
from collections.abc import Mapping
from functools import cached_property

from patches.audit.classes import UNKNOWN
from patches.audit.modules import Module, ModuleIndex
from patches.audit.tree import MisuseError

HOLDER = "speculative_config"
"""What every part of vLLM calls the object."""
_MODULE, _CLASS = "vllm.config.speculative", "SpeculativeConfig"
_CONFIGURATION = "vllm/config"
_SET_INSIDE = re.compile(r"\bself\.(\w+)(?:\s*:[^=\n]+)?\s*=(?!=)")
_SET_OUTSIDE = re.compile(rf"\b{HOLDER}\.(\w+)\s*=(?!=)")


def given(text: str | None) -> dict[str, object] | None:
    """The JSON of --speculative-config, None when it is not given. Raises `MisuseError`."""
    if text is None:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MisuseError(f"--speculative-config {text}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise MisuseError(f"--speculative-config {text}: not a JSON object; give vLLM's own value")
    return found


class Settings:
    """The options of one tree; `given` is None when no configuration is known."""

    def __init__(self, index: ModuleIndex, given: Mapping[str, object] | None) -> None:
        self._index = index
        self._given = given
        unknown = sorted((given or {}).keys() - self._defaults.keys()) if self._defaults else []
        if unknown:
            close = difflib.get_close_matches(unknown[0], self._defaults, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise MisuseError(
                f"--speculative-config {unknown[0]}: not an option of {index.tree.label}{hint}"
            )

    def value(self, option: str) -> object:
        """The value of an option, `UNKNOWN` when it cannot be told."""
        if self._given is None or option in self._computed:
            return UNKNOWN
        return self._given.get(option, self._default(option))

    def told(self, option: str) -> str:
        """Why an option has its value: it is given, or it is the default at ``path:line``."""
        if self._given is not None and option in self._given:
            return f"{option} is configured as {self._given[option]!r}"
        module = self._module
        assert module is not None
        where = module.where(self._defaults[option])
        return f"{option} is not configured and is {self._default(option)!r} at {where}"

    @cached_property
    def _module(self) -> Module | None:
        return self._index.get(_MODULE)

    @cached_property
    def _defaults(self) -> Mapping[str, ast.AnnAssign]:
        """The lines that define the options."""
        classes = self._module.classes() if self._module else []
        return {
            line.target.id: line
            for node in classes
            if node.name == _CLASS
            for line in node.body
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
        }

    def _default(self, option: str) -> object:
        line = self._defaults.get(option)
        match line.value if line else None:
            case ast.Constant(value=value):
                return value
            case ast.Call(keywords=keywords):
                for keyword in keywords:
                    if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
                        return keyword.value.value
        return UNKNOWN

    @cached_property
    def _computed(self) -> frozenset[str]:
        """The options that vLLM's configuration sets itself, whatever was given."""
        tree = self._index.tree
        found: set[str] = set()
        for path in tree.python_files(_CONFIGURATION):
            text = tree.read(path) or ""
            is_own = self._module is not None and path == self._module.path
            found.update((_SET_INSIDE if is_own else _SET_OUTSIDE).findall(text))
        return frozenset(found)
