"""The values of a recipe: what a profile serves, with what, on what, and how it is judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deploy.recipe.release import Release
from deploy.recipe.tables import RecipeError

UNVERIFIED = "unverified"


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
