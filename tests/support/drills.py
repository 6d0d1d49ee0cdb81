"""Starts that fail on purpose: what a CPU can show of the signatures that explain a failed start.

Each drill is a real vLLM start of the rehearsal's plan with one thing changed, and its log is real.
`drill_runner` runs them from one import of vLLM, which is nearly all that a start costs here.

Usage, for another release's environment: python -m tests.support.drills FOLDER [NAME...].
"""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from deploy import plan, recipe
from deploy.environment import cache_dir
from deploy.recipe import facts
from deploy.rehearsal.environment import QWEN, prepare
from deploy.rehearsal.errors import RehearsalError

ROOT = Path(__file__).resolve().parents[2]
# A drill takes seconds; vLLM's import takes 15 on an idle machine.
LIMIT_S = 600.0

SERVE, ENGINE = "serve", "engine"


@dataclass(frozen=True)
class Setting:
    """What a drill may change: where to put files, the served models, a port that is taken."""

    folder: Path
    target: Path
    draft: Path
    taken_port: int


@dataclass(frozen=True)
class Change:
    """What makes a start fail. `target` is served instead, `speculative` laid over the plan's,
    `without` names variables to take away, and SIGTERM is sent once the log holds `stop_at`."""

    flags: tuple[str, ...] = ()
    target: Path | None = None
    speculative: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    stop_at: str = ""


@dataclass(frozen=True)
class Drill:
    """A start that ends in a signature. SERVE is `vllm serve`, which fails before its engine is
    up; ENGINE is the engine in the same process, where it would be two processes further."""

    signature: str
    kind: str
    change: Callable[[Setting], Change]
    where: str | None = None
    unless: str | None = None

    def is_of(self, version: str) -> bool:
        """Whether a release fails so: where the fact `where` holds, and `unless` does not."""
        if self.where and not facts.holds(self.where, version):
            return False
        return not (self.unless and facts.holds(self.unless, version))


@dataclass(frozen=True)
class Ran:
    """How a drill ended: its exit code, and its log."""

    signature: str
    exit_code: int
    log: Path


@dataclass(frozen=True)
class Order:
    """A drill as `drill_runner` takes it, in JSON."""

    name: str
    kind: str
    arguments: Sequence[str]
    environ: Mapping[str, str]
    without: Sequence[str]
    stop_at: str
    log: str


def _cut_shard(at: Setting) -> Change:
    """A download that broke off: the last bytes of the weights are missing."""
    target = _copy(at.target, at.folder / "cut-shard")
    shard = next(target.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    return Change(target=target)


def _renamed_tensors(at: Setting) -> Change:
    """A checkpoint of another model: a layer that this one has not."""
    target = _copy(at.target, at.folder / "renamed-tensors")
    shard = next(target.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes().replace(b"model.layers.1.", b"model.layers.7."))
    return Change(target=target)


def _small_k(at: Setting) -> Change:
    """A K below the block that the draft's checkpoint names, as DeepSeek-V4's does."""
    draft = _copy(at.draft, at.folder / "draft-with-block")
    config = draft / "config.json"
    table = json.loads(config.read_text("utf-8")) | {"dspark_block_size": 5}
    config.write_text(json.dumps(table), "utf-8")
    return Change(speculative={"model": str(draft), "num_speculative_tokens": 3})


def _v1_runner(_: Setting) -> Change:
    return Change(environ={"VLLM_USE_V2_MODEL_RUNNER": "0"})


def _copy(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder, copy_function=shutil.copyfile, dirs_exist_ok=True)
    folder.chmod(0o755)  # published models may not be written to
    return folder


_KV_SPACE = ("VLLM_CPU_KVCACHE_SPACE",)

DRILLS = (
    Drill("config.bad_flag", SERVE, lambda _: Change(("--no-such-flag", "3"))),
    Drill("config.port_in_use", SERVE, lambda at: Change(("--port", str(at.taken_port)))),
    Drill("dspark.k_below_block", SERVE, _small_k, where="k-below-block-refused"),
    Drill("probe.killed", SERVE, lambda _: Change(stop_at="non-default args")),
    # The V1 runner takes the draft for one of its own kind, or refuses it.
    Drill("dspark.missing_hook", ENGINE, _v1_runner, unless="v1-refuses-dspark"),
    Drill("dspark.wrong_runner", ENGINE, _v1_runner, where="v1-refuses-dspark"),
    Drill(
        "dspark.missing_d2t_attr",
        ENGINE,
        lambda _: Change(environ={"REHEARSAL_FAULT": "drop-draft-attribute"}),
    ),
    Drill("ckpt.partial", ENGINE, _cut_shard),
    Drill("ckpt.unknown_weight", ENGINE, _renamed_tensors),
    Drill(
        "mem.vram_busy",
        ENGINE,
        lambda _: Change(("--gpu-memory-utilization", "1.0"), without=_KV_SPACE),
    ),
    Drill(
        "mem.kv_too_small",
        ENGINE,
        lambda _: Change(("--kv-cache-memory-bytes", "100000"), without=_KV_SPACE),
    ),
)


def run(
    cache: Path, folder: Path, environ: Mapping[str, str], only: Collection[str] = ()
) -> list[Ran]:
    """Run the drills of the release, or `only` those of these names; their logs go into `folder`.

    Raises RehearsalError for a runner that does not do its work.
    """
    profile = recipe.load().profile(QWEN)
    known = [drill for drill in DRILLS if drill.is_of(profile.vllm_version)]
    chosen = [drill for drill in known if not only or drill.signature in only]
    around = prepare(cache).over(environ)
    # Any free port: a server on the recipe's must not be what a drill fails of.
    made = plan.make(profile, ("--port", "0"), around)
    home = Path(around["REHEARSAL_HOME"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = Setting(folder, home / "target", home / "draft", taken.getsockname()[1])
        orders = [_order(drill, drill.change(at), made.argv, at) for drill in chosen]
        ended = subprocess.run(
            [sys.executable, "-m", "tests.support.drill_runner"],
            input=json.dumps([asdict(order) for order in orders]),
            cwd=ROOT,
            env={**around, **made.env},
            stdout=subprocess.PIPE,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    codes = [line.split() for line in ended.stdout.splitlines()]
    if ended.returncode or len(codes) != len(orders):
        raise RehearsalError(f"drills: the runner ended with {ended.returncode}: see its lines")
    return [Ran(name, int(code), folder / f"{name}.log") for name, code in codes]


def _order(drill: Drill, change: Change, argv: Sequence[str], at: Setting) -> Order:
    words = [str(change.target or at.target) if w == str(at.target) else w for w in argv[2:]]
    if change.speculative:
        place = words.index("--speculative-config") + 1
        words[place] = json.dumps(json.loads(words[place]) | dict(change.speculative))
    return Order(
        name=drill.signature,
        kind=drill.kind,
        arguments=[*words, *change.flags],
        environ=change.environ,
        without=change.without,
        stop_at=change.stop_at,
        log=str(at.folder / f"{drill.signature}.log"),
    )


if __name__ == "__main__":
    run(cache_dir(), Path(sys.argv[1]), os.environ, sys.argv[2:])
