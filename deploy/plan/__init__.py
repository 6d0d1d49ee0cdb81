"""The launch plan: a pure function from profile, extra flags and environment to argv and env."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deploy import door
from deploy.plan import arguments, memory
from deploy.plan.arguments import ArgumentsError, Given, text_of, words_of
from deploy.plan.memory import Memory
from deploy.plan.rules import Intent, check
from deploy.recipe import Model, Profile, budgets
from deploy.recipe.vocabulary import Vocabulary, nearest

# Runs vLLM's command line in a named interpreter, so that the tree that was checked is the one run.
VLLM_MODULE = "vllm.entrypoints.cli.main"

# What stands beside --speculative-config for one key of it (0.27.1, engine/arg_utils.py).
SPECULATIVE = "speculative-config"
SINGLE_KEYS = {
    "spec-method": "method",
    "spec-model": "model",
    "spec-tokens": "num_speculative_tokens",
}

# Variables that an operator sets for the server, and what of them is no secret.
_SERVERS = re.compile(r"(VLLM|HSA|NCCL|RCCL|AITER)_[A-Z0-9_]+")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")

_PLACEHOLDER = re.compile(r"\$\{([A-Z][A-Z0-9_]*)\}")


class PlanError(ValueError):
    """The plan may not start; the message is one line that names setting, value and fix."""


@dataclass(frozen=True)
class Plan:
    """What would run: `argv` beginning with `vllm serve`, `env` to add, and what to say first.

    `env` also shows what an operator has set for the server, but for secrets.

    `asks` and `longest` are what decides whether a fault of vLLM hits it: see `Intent`.
    """

    profile: str
    evidence: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    warnings: tuple[str, ...]
    asks: frozenset[str]
    longest: int | None
    memory: Memory | None  # of each card, None without a card

    def exec_argv(self, python: str) -> list[str]:
        """The same command run by a given interpreter."""
        return [python, "-m", VLLM_MODULE, *self.argv[1:]]

    def render(self, form: str) -> str:
        """The plan as `argv` (one word a line), `env` (NAME=value lines), `json` or `shell`."""
        if form == "argv":
            return "\n".join(self.argv)
        if form == "env":
            return "\n".join(f"{name}={value}" for name, value in self.env.items())
        if form == "json":
            fields = {
                "profile": self.profile,
                "evidence": self.evidence,
                "argv": list(self.argv),
                "env": dict(self.env),
                "warnings": list(self.warnings),
            }
            return json.dumps(fields, indent=2)
        if form == "shell":
            words = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
            return " \\\n  ".join(
                [*words, " ".join(shlex.quote(a) for a in self.argv[:3]), *_lines(self.argv[3:])]
            )
        raise ValueError(f"no such form: {form}")


def make(
    profile: Profile,
    extra: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    speculation: bool = True,
    graphs: bool = False,
) -> Plan:
    """The plan of a profile.

    `extra` are `vllm serve` flags laid over the recipe's, as a user adds them to the container.
    `environ` is the environment the server will start in: what it already sets wins over the
    recipe and is told as a warning. `speculation=False` serves without a draft, `graphs=True` with
    the profile's graph mode.
    Raises PlanError for a flag vLLM does not know and for a broken rule, RecipeError for graphs
    where the profile has no mode of them and for a step time-out that is none.
    """
    environ = environ or {}
    words = profile.vllm.vocabulary
    given = read_flags(extra, words)
    intended = intent(profile, given, environ, speculation, graphs)
    warnings = [
        f"--{name}: vLLM takes its single keys alone, and drops an object or another spelling"
        " beside them: give one form"
        for name in sorted(given.unread)
    ]
    warnings += _overrides(profile, given, intended)
    env = {name: expand(intended.env[name], environ) for name in profile.env}
    env |= {name: environ[name] for name in sorted(environ.keys() - env) if _is_shown(name)}
    warnings += [
        f"environment {name}={env[name]} overrides the recipe's {value}"
        for name, value in profile.env.items()
        if environ.get(name, value) != value
    ]
    findings = check(intended)
    fatal = [f.message for f in findings if f.fatal]
    if fatal:
        raise PlanError(fatal[0])
    argv = ["vllm", "serve", expand(intended.model.id, environ)]
    identity: dict[str, Any] = {"served-model-name": profile.served_model_name}
    if intended.model.revision:
        identity["revision"] = intended.model.revision
    identity["port"] = profile.ports.serve
    for name, value in {**identity, **intended.serve}.items():
        argv += words_of(name, value, words)
    speculative = intended.speculative or {}
    if speculative:
        table = {k: expand(v, environ) if isinstance(v, str) else v for k, v in speculative.items()}
        argv += words_of(SPECULATIVE, table, words)
    if environ.get(door.KEY):
        argv += words_of("middleware", door.NAME, words)  # beside a user's own, and before it
    return Plan(
        profile=profile.name,
        evidence=profile.evidence,
        argv=tuple(argv),
        env=env,
        warnings=(*(f.message for f in findings), *warnings),
        asks=intended.asks,
        longest=intended.longest,
        memory=memory.of(intended, profile.gpu) if profile.gpu else None,
    )


def read_flags(extra: Sequence[str], words: Vocabulary) -> Given:
    """A user's `vllm serve` flags as a release of vLLM reads them. Raises PlanError."""
    try:
        return arguments.read(extra, words)
    except ArgumentsError as e:
        raise PlanError(str(e)) from e


def intent(
    profile: Profile,
    given: Given,
    environ: Mapping[str, str],
    speculation: bool = True,
    graphs: bool = False,
) -> Intent:
    """The profile with the user's flags and environment laid over it.

    Raises PlanError for a speculative-config that vLLM would not take, RecipeError for graphs where
    the profile has no mode of them and for a step time-out that is none.
    """
    under = {**profile.serve, **(_with_graphs(profile) if graphs else {})}
    serve = {**under, **{name: given.over(name, under.get(name)) for name in given.values}}
    for name in ("model", "revision", SPECULATIVE, *SINGLE_KEYS):
        serve.pop(name, None)
    return Intent(
        model=_model(profile, given),
        is_rehearsal=profile.is_rehearsal,
        arch=profile.gpu.arch if profile.gpu else None,
        vllm_version=profile.vllm_version,
        serve=serve,
        speculative=_speculative(
            given, profile.speculative if speculation else None, profile.vllm.vocabulary
        ),
        env={**profile.env, **environ},
        health=budgets.of(profile, environ),
        recipes_health=profile.health,
    )


def _with_graphs(profile: Profile) -> dict[str, Any]:
    """The flag that serves with the profile's graph mode."""
    config = profile.serve.get("compilation-config", {})
    return {"compilation-config": {**config, "cudagraph_mode": profile.chosen_graphs}}


def _model(profile: Profile, given: Given) -> Model:
    """The model that is served: the recipe's revision is of the recipe's model alone."""
    name = given.values.get("model", profile.model.id)
    pinned = profile.revision if name == profile.model.id else None
    return replace(profile.model, id=name, revision=given.values.get("revision", pinned))


def _speculative(
    given: Given, under: Mapping[str, Any] | None, words: Vocabulary
) -> Mapping[str, Any] | None:
    """The table of the draft, with what the user gave of it; None without a draft."""
    table = given.over(SPECULATIVE, under or {}) if SPECULATIVE in given.values else under
    if isinstance(table, list):
        raise PlanError(f"--{SPECULATIVE}: got {text_of(table)!r}; give a JSON object")
    own = given.values.get(SPECULATIVE) or {}
    single = {flag: given.values[flag] for flag in SINGLE_KEYS if flag in given.values}
    for flag, value in single.items():
        if SINGLE_KEYS[flag] in own:
            raise PlanError(f"--{flag}: got {value!r}; --{SPECULATIVE} has it too: give one")
    added = {SINGLE_KEYS[flag]: value for flag, value in single.items() if value is not None}
    if not own and not added:
        return table
    read = {key.replace("-", "_"): value for key, value in {**(table or {}), **added}.items()}
    for key in read:
        if key not in words.speculative:
            raise PlanError(
                f"--{SPECULATIVE}: got the unknown key {key!r}; vLLM {words.vllm_version} has no"
                f" such{nearest(key, words.speculative)}; it has"
                f" {', '.join(sorted(words.speculative))}"
            )
    if "method" not in read and "model" not in read:
        raise PlanError(
            f"--{SPECULATIVE}: got {', '.join(read)} and no draft that has them; give its method"
            " too, or leave DSPARK_SPECULATION on"
        )
    return read


def _overrides(profile: Profile, given: Given, intended: Intent) -> list[str]:
    """What of the recipe the user's flags replace by another value."""
    recipes = {
        **profile.serve,
        "model": profile.model.id,
        "revision": profile.revision,
        "served-model-name": [profile.served_model_name],
        "port": profile.ports.serve,
    }
    served = {**intended.serve, "model": intended.model.id, "revision": intended.model.revision}
    told = [
        f"--{name} {text_of(served[name])} overrides the recipe's {text_of(recipes[name])}"
        for name in given.values
        if name in recipes and served[name] != recipes[name]
    ]
    if {SPECULATIVE, *SINGLE_KEYS} & given.values.keys():
        draft, own = intended.speculative or {}, profile.speculative or {}
        told += [
            f"--{SPECULATIVE}.{key} {text_of(draft.get(key))} overrides the recipe's"
            f" {text_of(own.get(key))}"
            for key in {**own, **draft}
            if draft.get(key) != own.get(key)
        ]
    return told


def _is_shown(name: str) -> bool:
    """Whether a variable of the environment is shown with the plan."""
    return _SERVERS.fullmatch(name) is not None and _SECRET.search(name) is None


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Fill ${NAME} from the environment. Raises PlanError for a variable that is not set."""

    def fill(match: re.Match[str]) -> str:
        value = environ.get(match[1])
        if value is None:
            raise PlanError(
                f"{match[1]}: is not set and {text!r} needs it; start the CPU rehearsal with"
                " `make rehearsal`"
            )
        return value

    return _PLACEHOLDER.sub(fill, text)


def _lines(words: Sequence[str]) -> list[str]:
    """Each flag with its values as one shell line."""
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(shlex.quote(word))
    return [" ".join(line) for line in lines]
