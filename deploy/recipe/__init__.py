"""Read deploy/recipe.toml, and the release of vLLM that it names, into frozen values.

Where the release's folder has a recipe.toml too, that is laid over: what profiles differ in on it.

Every refusal is a RecipeError of one line: file, key, the value seen, the fix.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.recipe import release, tables
from deploy.recipe.release import Release
from deploy.recipe.tables import Reader, article
from deploy.recipe.tables import RecipeError as RecipeError
from deploy.recipe.vocabulary import nearest

FILE = Path(__file__).parents[1] / "recipe.toml"
SCHEMA = 1
UNVERIFIED = "unverified"

# No wait is longer; 11 days, so that every clock and timer takes it.
MOST_S = 1e6

# Tables that a profile lays its differences over; SHARED ones also reach a profile that does not
# inherit the AMD server: how to speculate, and how to judge.
MERGED = ("model", "serve", "speculative", "env", "health")
SHARED = frozenset({"speculative", "health"})
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

EFFECTS = ("degraded", "not-ready")
# vLLM's CUDAGraphMode (0.27.1, config/compilation.py).
GRAPH_MODES = ("NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")

_ENV_NAME = re.compile(r"[A-Z][A-Z0-9_]*")


@dataclass(frozen=True)
class Model:
    """What is served: a hub id or a folder, its revision, the name clients ask for."""

    id: str
    revision: str | None = None
    served_name: str | None = None
    weights_bytes: int | None = None
    dspark_block_size: int | None = None
    moe_intermediate_size: int | None = None
    vocab_size: int | None = None
    max_position_embeddings: int | None = None


@dataclass(frozen=True)
class Ports:
    """TCP ports of the two services."""

    serve: int
    health: int


@dataclass(frozen=True)
class Gpu:
    """The card a profile is made for; memory in GiB, count = cards one server uses."""

    name: str
    arch: str
    compute_units: int
    memory_gb: int
    count: int


@dataclass(frozen=True)
class Reference:
    """Published speculation figures to stand beside measured ones; rates are fractions."""

    source: str
    acceptance_rate: float
    acceptance_length: float
    acceptance_position_0: float


@dataclass(frozen=True)
class Health:
    """Budgets of the health service, in seconds unless the name says otherwise.

    No `long_prompt_tokens` leave the gate's long probes out, `gate_requests` 1 the one that sends
    several requests at once. `graph_restarts` is how many starts may be ended for a new one.
    """

    scrape_interval_s: float = 5.0
    connect_timeout_s: float = 2.0
    probe_timeout_s: float = 5.0
    start_budget_s: float = 7200.0
    warmup_timeout_s: float = 900.0
    generation_timeout_s: float = 180.0
    gate_tokens: int = 64
    long_prompt_tokens: tuple[int, ...] = (1500, 8000, 32000)
    long_tokens: int = 320
    gate_requests: int = 4
    graph_restarts: int = 3
    known_answers: bool = True
    canary_after_s: float = 45.0
    canary_timeout_s: float = 30.0
    canary_tokens: int = 8
    idle_check_after_s: float = 600.0
    evidence_max_age_s: float = 300.0
    readiness_budget_s: float = 60.0
    stall_budget_s: float = 660.0
    deadlock_budget_s: float = 300.0
    stall_confirmations: int = 3
    dead_after_s: float = 30.0
    drain_budget_s: float = 600.0
    bad_verdicts: int = 3
    good_verdicts: int = 2
    acceptance_window_drafts: int = 128
    acceptance_floor: float = 0.15
    acceptance_ceiling: float = 0.99
    acceptance_effect: str = "degraded"
    gpu_error_effect: str = "degraded"


@dataclass(frozen=True)
class Profile:
    """One way to serve, with the common tables merged in; `serve` is keyed by vLLM's flag names.

    `graphs` is the mode that it may be served with by choice, None where no public run held one up.
    """

    name: str
    evidence: str
    note: str
    model: Model
    serve: Mapping[str, Any]
    speculative: Mapping[str, Any] | None
    env: Mapping[str, str]
    health: Health
    vllm: Release
    ports: Ports
    reference: Reference
    gpu: Gpu | None = None
    graphs: str | None = None

    @property
    def vllm_version(self) -> str:
        """The release of the pinned vLLM."""
        return self.vllm.version

    @property
    def is_rehearsal(self) -> bool:
        """True for the CPU profile, whose models are generated and whose draft stands alone."""
        return self.gpu is None

    @property
    def chosen_graphs(self) -> str:
        """The mode that DSPARK_GRAPHS=on stands for. Raises RecipeError where there is none."""
        if self.graphs is None:
            raise RecipeError(
                f"DSPARK_GRAPHS: got 'on'; no public run of {self.name} held up with graphs: leave "
                "it off"
            )
        return self.graphs

    @property
    def served_model_name(self) -> str:
        """The name clients pass as `model`."""
        return self.model.served_name or self.model.id

    @property
    def revision(self) -> str | None:
        """The pinned revision of the weights, None for generated ones."""
        return self.model.revision


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


class _Words(Reader):
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
            if setting in base and _same(base[setting], value):
                fix = "a profile holds differences only: drop the line"
                raise self.refusal(f"{key}.{setting}", value, fix)


class _Differences(_Words):
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


class _Reader(_Words):
    """Reads the recipe's tables for one vLLM release."""

    def __init__(self, path: Path, vllm: Release) -> None:
        super().__init__(path, vllm)
        self.released = _Differences(vllm)

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


def _same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b
