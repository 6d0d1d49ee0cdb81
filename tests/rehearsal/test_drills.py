"""Real starts that fail on purpose, each explained by its signature; and what no CPU can show."""

import ast
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from deploy import recipe
from deploy.environment import cache_dir
from healthcheck.explain import Explanation, Verdict, explain_stream
from healthcheck.explain.signatures import load
from tests.support import drills
from tests.support.drills import DRILLS, Ran

TESTS = Path(__file__).resolve().parents[1]
VERSION = recipe.load().vllm.version
DRILLED = [drill.signature for drill in DRILLS if drill.is_of(VERSION)]

# Consequences and faults of a server that is up: real servers show them in these tests.
SHOWN: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "worker.start_failed",
            "worker.init_failed",
            "engine.core_start_failed",
            "engine.core_init_failed",
        ),
        ("rehearsal/test_supervisor.py", "test_the_missing_attribute_is_named_and_not_its_wrapper"),
    ),
    **dict.fromkeys(
        ("engine.dead", "engine.worker_rpc_failed"),
        ("rehearsal/test_server.py", "test_raise_in_draft_ends_the_engine"),
    ),
    "numerics.nan_json": ("rehearsal/test_server.py", "test_nan_weights_answer_with_nothing"),
}

_GPU = "ROCm, RCCL, AITER or a GPU's kernels write it"
_WEIGHTS = "DeepSeek-V4's classes and checkpoint write it"
NOT_ON_CPU: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "rocm.kfd_perm", "rocm.no_gpu", "rocm.no_code_object", "rocm.mem_fault",
            "rocm.hsa_oor", "mem.hip_oom", "rccl.iommu_warn", "shm.too_small", "graph.capture",
            "rocm.other_arch", "rocm.hang", "rocm.hsa_exception", "rocm.hsa_memory",
            "rocm.hsa_code", "rocm.hsa_limits", "native.segfault", "aiter.check",
            "triton.lds_gfx950", "rccl.memlock", "rccl.watchdog", "rccl.peer_gone",
            "triton.lds", "aiter.baton_wait", "aiter.jit_failed", "jit.during_inference",
        ),
        _GPU,
    ),
    **dict.fromkeys(("ckpt.weight_key", "kvquant.uncalibrated"), _WEIGHTS),
    "dspark.pp": "a worker of a second pipeline stage writes it: the drills have one",
    "docker.render_group": "the Docker engine writes it, before a server starts",
    **dict.fromkeys(
        ("fs.no_space", "fs.full", "shm.insufficient", "shm.full", "shm.bus_error"),
        "needs a file system of its own that is full",
    ),
    "mem.killed": "the kernel writes it, when the host's memory is out",
    "fs.cache_perm": "root, as which tests may run, is refused nothing",
    "chat.no_template": "the rehearsal's tokenizer has a template",
    "mem.kv_none": "the CPU's worker refuses a KV cache of no size with another line",
    "engine.ready_timeout": "needs an engine that connects and is not ready in time",
    "engine.rpc_timeout": "needs a step longer than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: a minute",
    "shm.bcast_wait": "comes after a minute of a stopped worker",
    "engine.executor_failed": "comes with a worker that was killed in a step, not at each one",
    "engine.queue_cancelled": "comes with a worker that was killed in a step, not at each one",
    "worker.died": "a killed worker's watcher writes it; the API process may end before",
    "engine.exited": "a killed engine's watcher writes it; the API process may end before",
}  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Ran]:
    """Every drill, run once."""
    folder = tmp_path_factory.mktemp("drills")
    return {one.signature: one for one in drills.run(cache_dir(), folder, os.environ)}


def _explained(one: Ran) -> Explanation:
    with one.log.open("rb") as stream:
        return explain_stream(stream)


@pytest.mark.real
@pytest.mark.parametrize("signature", DRILLED)
def test_a_drill_is_explained_by_its_signature(ran: Mapping[str, Ran], signature: str) -> None:
    """vLLM's own lines of a start that fails lead to the cause that made it fail."""
    one = ran[signature]
    found = _explained(one)
    assert one.exit_code != 0, found.headline
    assert found.verdict is Verdict.FAILED
    assert found.cause is not None
    assert found.cause.id == signature, found.headline
    assert "not said" not in found.cause.remedy


@pytest.mark.real
def test_a_drill_fails_at_the_stage_of_its_fault(ran: Mapping[str, Ran]) -> None:
    """The timeline of a failed start ends where the fault is, unfinished."""
    stages = {
        "dspark.k_below_block": "config",
        "ckpt.partial": "weights",
        "dspark.missing_d2t_attr": "draft",
    }
    expected = {name: stage for name, stage in stages.items() if name in DRILLED}
    reached = {}
    for name in ("probe.killed", *expected):
        startup = _explained(ran[name]).startup
        assert startup is not None, name
        assert not startup.ready
        reached[name] = startup.stages[-1].name
    del reached["probe.killed"]  # wherever the signal found it
    assert reached == expected


def test_every_signature_is_drilled_or_is_said_why_not() -> None:
    """Each is shown by a drill or by another test of a real server, or has its reason."""
    named = [*(drill.signature for drill in DRILLS), *SHOWN, *NOT_ON_CPU]
    assert len(set(named)) == len(named)
    assert set(named) == {signature.id for signature in load()}


@pytest.mark.parametrize(("file", "name"), sorted(set(SHOWN.values())))
def test_the_tests_that_are_named_are_there(file: str, name: str) -> None:
    """A test that shows a signature cannot be renamed without this table."""
    tree = ast.parse((TESTS / file).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
