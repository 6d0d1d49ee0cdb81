"""Read deploy/recipe.toml, and the release of vLLM that it names, into frozen values.

Where the release's folder has a recipe.toml too, that is laid over: what profiles differ in on it.

Every refusal is a RecipeError of one line: file, key, the value seen, the fix.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.recipe import release, tables
from deploy.recipe.release import Release
from deploy.recipe.tables import Reader, RecipeError
from deploy.recipe.values import UNVERIFIED, Gpu, Health, Model, Ports, Profile, Reference
from deploy.recipe.words import Differences, Words

__all__ = [
    "EFFECTS",
    "FILE",
    "GRAPH_MODES",
    "MOST_S",
    "UNVERIFIED",
    "Gpu",
    "Health",
    "Model",
    "Ports",
    "Profile",
    "Recipe",
    "RecipeError",
    "Reference",
    "load",
]

FILE = Path(__file__).parents[1] / "recipe.toml"
SCHEMA = 1

# No wait is longer; 11 days, so that every clock and timer takes it.
MOST_S = 1e6

# Tables that a profile lays its differences over; SHARED ones also reach a profile that does not
# inherit the AMD server: how to speculate, and how to judge.
MERGED = ("model", "serve", "speculative", "env", "health")
SHARED = frozenset({"speculative", "health"})

EFFECTS = ("degraded", "not-ready")
# vLLM's CUDAGraphMode (0.27.1, config/compilation.py).
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


@dataclass(frozen=True)
class Recipe:
    """The whole file, checked: pins, ports and every profile."""

    vllm: Release
    ports: Ports
    reference: Reference
    profiles: Mapping[str, Profile] = field(default_factory=dict)

    @property
    def drafts(self) -> tuple[Mapping[str, Any], ...]:
        """Each speculative table that a profile with a card serves with, once."""
        tables = [p.speculative for p in self.profiles.values() if p.speculative and p.gpu]
        return tuple(t for i, t in enumerate(tables) if t not in tables[:i])

    def profile(self, name: str) -> Profile:
        """The named profile. Raises RecipeError that lists the names there are."""
        if name in self.profiles:
            return self.profiles[name]
        raise RecipeError(f"profile: got {name!r}; it is one of {', '.join(self.profiles)}")


def load(path: Path | None = None, releases: Path = release.FOLDER) -> Recipe:
    """Read and check a recipe, for the release of the folder that RELEASE names or for its own.

    Raises RecipeError.
    """
    path = path or FILE
    data = tables.load(path, "a recipe")
    reader = Reader(path)
    reader.refuse_unfit("", data)
    if data.get("schema") != SCHEMA:
        raise reader.refusal("schema", data.get("schema"), f"this code reads schema {SCHEMA}")
    default = reader.text("release", data.get("release"), "name a folder of deploy/releases")
    given = os.environ.get(release.VARIABLE)
    setting = release.VARIABLE if given else "release"
    vllm = release.load(given or default, releases, setting)
    return _Reader(path, vllm).recipe(data)


class _Reader(Words):
    """Reads the recipe's tables for one vLLM release."""

    def __init__(self, path: Path, vllm: Release) -> None:
        super().__init__(path, vllm)
        self.released = Differences(vllm)

    def recipe(self, data: Mapping[str, Any]) -> Recipe:
        known = {"schema", "release", "ports", "reference", "profiles", *MERGED}
        self.refuse_unknown("", data, known)
        ports = self.read(Ports, "ports", self.table(data, "ports"))
        for name, port in dataclasses.asdict(ports).items():
            if not 1 <= port <= 65535:
                raise self.refusal(f"ports.{name}", port, "give a port from 1 to 65535")
        reference = self.read(Reference, "reference", self.table(data, "reference"))
        common = {part: self.table(data, part) for part in MERGED}
        self.check_parts("", common)
        tables = self.table(data, "profiles")
        if not tables:
            raise self.refusal("profiles", tables, "define at least one profile")
        self.released.check(tables)
        profiles: dict[str, Profile] = {}
        for name in tables:
            key = f"profiles.{name}"
            table = self.table(tables, name, "profiles")
            parts = self.merged(name, table, common, tables)
            gpu = self.table(table, "gpu", key, required=False)
            profiles[name] = Profile(
                name=name,
                evidence=self.told(key, table, "evidence"),
                note=self.told(key, table, "note"),
                model=self.model(f"{key}.model", parts["model"]),
                serve=parts["serve"],
                speculative=parts["speculative"] or None,
                env=parts["env"],
                health=self.health(f"{key}.health", parts["health"]),
                vllm=self.vllm,
                ports=ports,
                reference=reference,
                gpu=self.read(Gpu, f"{key}.gpu", gpu) if gpu else None,
                graphs=self.graphs(key, table, tables),
            )
        return Recipe(self.vllm, ports, reference, profiles)

    def merged(
        self,
        name: str,
        table: Mapping[str, Any],
        common: Mapping[str, Mapping[str, Any]],
        tables: Mapping[str, Any],
    ) -> dict[str, dict[str, Any]]:
        """The profile's tables laid over those of the profile it is like, over the common ones.

        Each with what the release has of it laid over.
        """
        key = f"profiles.{name}"
        own_keys = {"evidence", "note", "gpu", "graphs", "inherit", "like", *MERGED}
        self.refuse_unknown(key, table, own_keys)
        inherit = table.get("inherit", True)
        if not isinstance(inherit, bool):
            raise self.refusal(f"{key}.inherit", inherit, "give true or false")
        like = table.get("like")
        alone = [n for n, t in tables.items() if isinstance(t, dict) and "like" not in t]
        if like is not None and like not in alone:
            one_of = ", ".join(n for n in alone if f"profiles.{n}" != key)
            raise self.refusal(f"{key}.like", like, f"name a profile that stands alone: {one_of}")
        own = {part: self.table(table, part, key, required=False) for part in MERGED}
        self.check_parts(key, own)
        result: dict[str, dict[str, Any]] = {}
        for part in MERGED:
            inherits = inherit or part in SHARED
            base = dict(common[part]) if inherits else {}
            made = self.released.over(base, None, part) if inherits else {}
            if like is not None:
                likes = self.table(tables[like], part, f"profiles.{like}", required=False)
                base |= likes
                made = self.released.over({**made, **likes}, like, part)
            self.refuse_same(f"{key}.{part}", own[part], base)
            result[part] = self.released.over({**made, **own[part]}, name, part)
        return result

    def graphs(self, key: str, table: Mapping[str, Any], tables: Mapping[str, Any]) -> str | None:
        """The profile's own graph mode, else that of the profile it is like."""
        source = tables[table["like"]] if "like" in table and "graphs" not in table else table
        mode = source.get("graphs")
        if mode is None:
            return None
        if mode not in GRAPH_MODES:
            raise self.refusal(f"{key}.graphs", mode, f"give one of {', '.join(GRAPH_MODES)}")
        return str(mode)

    def model(self, key: str, table: Mapping[str, Any]) -> Model:
        model = self.read(Model, key, table)
        if not model.id.strip() or model.id.startswith("-"):
            raise self.refusal(f"{key}.id", model.id, "name a model of a hub, or a folder")
        return model

    def health(self, key: str, table: Mapping[str, Any]) -> Health:
        health = self.read(Health, key, table)
        for setting, value in dataclasses.asdict(health).items():
            if setting.endswith("_s") and value > MOST_S:
                raise self.refusal(f"{key}.{setting}", value, f"give seconds, to {MOST_S:g}")
        lengths = health.long_prompt_tokens
        if list(lengths) != sorted(set(lengths)):
            fix = "give lengths from short to long"
            raise self.refusal(f"{key}.long_prompt_tokens", lengths, fix)
        for rate in ("acceptance_floor", "acceptance_ceiling"):
            if not getattr(health, rate) <= 1:
                raise self.refusal(f"{key}.{rate}", getattr(health, rate), "give a fraction to 1")
        for effect in ("acceptance_effect", "gpu_error_effect"):
            if getattr(health, effect) not in EFFECTS:
                fix = f"give one of {', '.join(EFFECTS)}"
                raise self.refusal(f"{key}.{effect}", getattr(health, effect), fix)
        return health

    def told(self, key: str, table: Mapping[str, Any], name: str) -> str:
        fix = f'say what ran, where and when, or "{UNVERIFIED}"'
        return self.text(f"{key}.{name}", table.get(name, ""), fix)
