"""What a start would do on this machine: the profile's plan, its weights, caches and ports."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deploy import plan
from deploy.addresses import EVERYWHERE
from deploy.plan import PlanError, memory
from deploy.plan.arguments import Given
from deploy.plan.memory import Memory
from deploy.plan.rules import Intent
from deploy.preflight.caches import Cache, read_caches
from deploy.preflight.facts.limits import Port, read_port
from deploy.preflight.findings import Unknown
from deploy.preflight.host import Host
from deploy.preflight.weights import Weights, read_weights
from deploy.recipe import Model, Profile, RecipeError, budgets

# Sizes of the model that its own config.json knows better than the recipe.
FROM_CONFIG = (
    *("dspark_block_size", "moe_intermediate_size"),
    *("vocab_size", "max_position_embeddings"),
)


@dataclass(frozen=True)
class Start:
    """A profile about to be started. `refusal` is why its flags cannot be read, if they cannot."""

    profile: Profile
    environ: Mapping[str, str]
    intent: Intent
    refusal: str | None
    weights: Weights | Unknown
    caches: tuple[Cache, ...]
    ports: tuple[Port, ...]

    def size(self, flag: str) -> int:
        """A parallel size of the plan, 1 where none is given or it is no number."""
        return self.intent.size(flag) or 1

    @property
    def memory(self) -> Memory | None:
        """What the plan asks of each card, None without a card."""
        card = self.profile.gpu
        return memory.of(self.intent, card) if card else None

    @property
    def gpus(self) -> int:
        """GPUs that one server takes."""
        names = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
        total = 1
        for name in names:
            total *= self.size(name)
        return total


def gather(
    host: Host,
    profile: Profile,
    extra: Sequence[str] = (),
    speculation: bool = True,
    graphs: bool = False,
) -> Start:
    """Read what a start of the profile would meet; `extra` are flags laid over the recipe's."""
    refusal = None
    try:
        given = plan.read_flags(extra, profile.vllm.vocabulary)
        intent = plan.intent(profile, given, host.environ, speculation, graphs)
    except (PlanError, RecipeError) as e:
        refusal = str(e)
        told = {k: v for k, v in host.environ.items() if k != budgets.STEP_TIMEOUT}
        intent = plan.intent(profile, Given({}), told, speculation)
    serve = intent.serve
    weights = read_weights(host, intent.model, serve)
    intent = dataclasses.replace(intent, model=_with_config(intent.model, weights))
    port = serve.get("port", profile.ports.serve)
    address = str(serve.get("host") or EVERYWHERE)
    return Start(
        profile=profile,
        environ=host.environ,
        intent=intent,
        refusal=refusal,
        weights=weights,
        caches=read_caches(host),
        ports=(
            read_port(host, "serve", address, port),
            read_port(host, "health", address, profile.ports.health),
        ),
    )


def _with_config(model: Model, weights: Weights | Unknown) -> Model:
    """The model with the sizes that its own config.json gives, where it is there."""
    if isinstance(weights, Unknown) or isinstance(weights.config, Unknown):
        return model
    sizes = {
        name: weights.config[name]
        for name in FROM_CONFIG
        if type(weights.config.get(name)) is int and weights.config[name] > 0
    }
    return dataclasses.replace(model, **sizes)
