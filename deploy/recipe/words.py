"""Tables of flags, variables and settings, by the names that one release of vLLM knows."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from deploy.recipe import tables
from deploy.recipe.release import Release
from deploy.recipe.tables import Reader, article
from deploy.recipe.vocabulary import nearest

# What a release's own recipe.toml may lay over both: what is vLLM's to read.
RELEASED = ("serve", "speculative", "env")
# Flags that the plan writes from other tables.
RESERVED = {
    "model": "model.id",
    "revision": "model.revision",
    "served-model-name": "model.served_name",
    "port": "ports.serve",
    "speculative-config": "[speculative]",
    "config": "this file (vLLM's YAML loader drops false booleans silently)",
}
_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


class Words(Reader):
    """Reads tables of flags, variables and settings, by the names that one vLLM release knows."""

    def __init__(self, path: Path, vllm: Release) -> None:
        super().__init__(path)
        self.vllm = vllm
        self.words = vllm.vocabulary

    def check_parts(self, key: str, parts: Mapping[str, Mapping[str, Any]]) -> None:
        """Names and types of one level's tables, against what the pinned vLLM knows."""
        at = f"{key}." if key else ""
        version = self.words.vllm_version
        for name, value in parts["serve"].items():
            flag = self.words.flags.get(name)
            if flag is None:
                fix = f"vLLM {version} has no such flag{nearest(name, self.words.flags)}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
            if name in RESERVED:
                raise self.refusal(f"{at}serve.{name}", value, f"it comes from {RESERVED[name]}")
            if not flag.accepts(value):
                fix = f"vLLM {version} takes {article(flag.kind)}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
            if flag.choices and isinstance(value, str) and value not in flag.choices:
                fix = f"vLLM {version} takes one of {', '.join(map(str, flag.choices))}"
                raise self.refusal(f"{at}serve.{name}", value, fix)
        for name, value in parts["speculative"].items():
            if name not in self.words.speculative:
                close = nearest(name, self.words.speculative)
                fix = f"vLLM {version} has no such speculative setting{close}"
                raise self.refusal(f"{at}speculative.{name}", value, fix)
        for name, value in parts["env"].items():
            if not _ENV_NAME.fullmatch(name):
                raise self.refusal(f"{at}env.{name}", value, "give an upper-case variable name")
            if name.startswith("VLLM_") and name not in self.words.environment:
                close = nearest(name, self.words.environment)
                raise self.refusal(f"{at}env.{name}", value, f"vLLM {version} reads no such{close}")
            if not isinstance(value, str):
                raise self.refusal(
                    f"{at}env.{name}", value, "environment values are strings: quote"
                )

    def refuse_same(self, key: str, own: Mapping[str, Any], base: Mapping[str, Any]) -> None:
        """Refuse a line that says what holds without it."""
        for setting, value in own.items():
            if setting in base and same(base[setting], value):
                fix = "a profile holds differences only: drop the line"
                raise self.refusal(f"{key}.{setting}", value, fix)


class Differences(Words):
    """Reads what a release's folder lays over the recipe: common tables, and those of profiles."""

    def __init__(self, vllm: Release) -> None:
        super().__init__(vllm.recipe, vllm)
        self.data = tables.load(self.path, "a recipe") if self.path.exists() else {}

    def check(self, profiles: Collection[str]) -> None:
        """Refuse what vLLM does not read, a name that the release has not, an unknown profile."""
        self.refuse_unfit("", self.data)
        self.refuse_unknown("", self.data, {"profiles", *RELEASED})
        named = self.table(self.data, "profiles", required=False)
        self.refuse_unknown("profiles", named, profiles)
        for name in (None, *named):
            key, table = self.of(name)
            if name:
                self.refuse_unknown(key, table, RELEASED)
            self.check_parts(key, {p: self.table(table, p, key, required=False) for p in RELEASED})

    def of(self, profile: str | None) -> tuple[str, Mapping[str, Any]]:
        """The key and the tables of a profile, of None those that all have in common."""
        if profile is None:
            return "", self.data
        named = self.table(self.data, "profiles", required=False)
        return f"profiles.{profile}", self.table(named, profile, "profiles", required=False)

    def over(self, base: Mapping[str, Any], profile: str | None, part: str) -> dict[str, Any]:
        """A table with that of the release laid over it, which holds differences only."""
        key, table = self.of(profile)
        own = self.table(table, part, key, required=False)
        self.refuse_same(f"{key}.{part}" if key else part, own, base)
        return {**base, **own}


def same(a: object, b: object) -> bool:
    """Equal and of one type: 1 is not true."""
    return type(a) is type(b) and a == b
