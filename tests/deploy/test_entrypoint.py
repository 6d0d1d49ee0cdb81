"""The image's entrypoint, run as the image runs it, up to the exec."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.environment import cache_dir
from deploy.rehearsal.tree import publish_tree
from patches import apply, faults, series
from tests.support.vllm_trees import slim_copy, tree

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "docker" / "entrypoint.py"
SERIES = series.load()
PATCHED = [target.path for patch in SERIES.patches for target in patch.targets]
"""All that a tree needs to be judged; what is run of such a tree ends at once."""


@pytest.fixture(scope="module")
def trees() -> dict[str, Path]:
    """The installed vLLM, with the series and without."""
    cache = cache_dir(os.environ)
    return {
        "patched": publish_tree(cache, patched=True),
        "unpatched": publish_tree(cache, patched=False),
    }


def run(*words: str, tree: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """The entrypoint in an environment that holds nothing of ours but what is given."""
    foreign = ("DSPARK_", "VLLM_", "PYTHON", "REHEARSAL_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    env["DSPARK_PREFLIGHT"] = "off"  # these tests are about everything else
    if tree is not None:
        env["PYTHONPATH"] = str(tree)
    return subprocess.run(
        [sys.executable, str(ENTRYPOINT), *words],
        cwd="/",
        env={**env, **environ},
        capture_output=True,
        text=True,
        timeout=300,
    )


def refused(ended: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal; asserts that there is no other."""
    assert ended.stdout == ""
    lines = ended.stderr.splitlines()
    assert len(lines) == 1, ended.stderr
    return lines[0]


def test_an_unpatched_vllm_is_refused_with_the_command_that_mends_it(
    trees: dict[str, Path],
) -> None:
    """Every fault that would answer wrongly without a word is named, and nothing is started."""
    ended = run(tree=trees["unpatched"], DSPARK_PROFILE="mi355x")
    line = refused(ended)
    assert ended.returncode == 1
    for fault in faults.of("0.27.1"):
        assert (f"{fault.key}: " in line) == fault.refuses, fault.key
    assert "(the plan asks for probabilistic)" in line
    assert "(the plan asks for aiter-moe)" in line
    assert "(max-model-len is 393216, right to 2048)" in line
    assert f"mend it: cd '{ROOT}'" in line
    assert line.endswith(f"-m patches apply '{trees['unpatched']}'")


def half_patched(folder: Path) -> Path:
    """0.27.1 with the one patch whose fault hits every plan."""
    kept = [patch for patch in SERIES.patches if patch.name.startswith("0009")]
    root = slim_copy("0.27.1", folder, PATCHED)
    apply.apply(root, replace(SERIES, patches=tuple(kept)))
    return root


def test_a_half_patched_vllm_may_serve_a_plan_that_is_not_hit(tmp_path: Path) -> None:
    """Without draft and AITER's experts, and short enough, what is left is a warning."""
    ended = run(
        "--max-model-len=2k",
        tree=half_patched(tmp_path),
        DSPARK_PROFILE="mi325x",
        DSPARK_SPECULATION="off",
    )
    assert "0001-rocm-dspark-draft-id-to-target-id.patch: pending" in ended.stdout
    warned = [line for line in ended.stdout.splitlines() if "warning: serving with " in line]
    assert len(warned) == 1
    assert "warning: serving with chat-encoding: " in warned[0]
    assert "speculative" not in ended.stdout.split("vllm serve")[1]


def test_the_server_finds_its_door_from_any_folder(tmp_path: Path) -> None:
    """With a key the plan names the door, vLLM can import it, and the key itself is not told."""
    root = half_patched(tmp_path)
    main = root / "vllm/entrypoints/cli/main.py"
    main.parent.mkdir(parents=True, exist_ok=True)
    (root / "vllm/__init__.py").write_text("")
    main.write_text("from deploy.door import Door; print('found', Door.__name__)")
    ended = run(
        "--max-model-len=2k",
        tree=root,
        DSPARK_PROFILE="mi325x",
        DSPARK_SPECULATION="off",
        VLLM_API_KEY="sk-hidden",
    )
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (0, "found Door")
    assert ended.stdout.splitlines()[-2].strip() == "--middleware deploy.door.Door"
    assert "sk-hidden" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("version", "words", "environ", "named"),
    [
        ("0.25.1", ["--max-model-len=2048"], {"DSPARK_PROFILE": "mi325x"}, {"draft-attribute", "draft-noise", "nan-argmax", "page-clearing"}),
        ("0.28.0", [], {"DSPARK_PROFILE": "mi325x"}, {"draft-noise", "indexer-layout"}),
        ("0.28.0", ["--max-model-len=2048"], {"DSPARK_PROFILE": "mi325x"}, {"draft-noise"}),
        ("0.29.0", [], {"DSPARK_PROFILE": "mi355x"}, {"indexer-layout", "expert-clamp"}),
        ("0.29.0", ["--moe-backend=auto", "--max-model-len=2048"], {"DSPARK_PROFILE": "mi355x"}, {"expert-clamp"}),
        ("0.30.0", [], {"DSPARK_PROFILE": "mi308x", "DSPARK_SPECULATION": "off"}, {"indexer-layout"}),
    ],
)  # fmt: skip
def test_a_release_that_no_patch_fits_is_refused_with_another(
    version: str, words: list[str], environ: dict[str, str], named: set[str]
) -> None:
    """Only what hits the plan is named; the remedy is a release that is right."""
    ended = run(*words, tree=tree(version), **environ)
    line = refused(ended)
    assert ended.returncode == 1
    assert {fault.key for fault in faults.load() if f"{fault.key}: " in line} == named
    way_out = "no patch fits it: use vLLM 0.27.0 or 0.27.1 with the series"
    later = ", or vLLM 0.32.0 or later, but for gfx942"
    assert line.endswith(way_out + (later if environ["DSPARK_PROFILE"] == "mi355x" else ""))


def test_a_release_that_is_wrong_on_one_card_is_refused_there_alone(tmp_path: Path) -> None:
    """0.32.0 loses keys on gfx942 past 2,048 tokens: the plan itself is refused; a short one, and
    the other card, are served."""
    root = slim_copy("0.32.0", tmp_path, PATCHED)
    ended = run(tree=root, DSPARK_PROFILE="mi300x")
    assert ended.returncode == 1
    assert refused(ended).startswith("entrypoint: vLLM 0.32.0: indexer-negative-zero: ")
    for words, name in (([], "mi355x"), (["--max-model-len=2048"], "mi300x")):
        ended = run(*words, tree=root, DSPARK_PROFILE=name)
        assert "vllm serve deepseek-ai/DeepSeek-V4-Flash-0731" in ended.stdout, ended.stderr
        assert "indexer-negative-zero" not in ended.stdout


def test_a_release_with_a_rare_fault_is_served_with_a_warning(tmp_path: Path) -> None:
    """0.31.0 has one fault left, which does not refuse."""
    ended = run(tree=slim_copy("0.31.0", tmp_path, PATCHED), DSPARK_PROFILE="mi355x")
    told = [line for line in ended.stdout.splitlines() if "warning: serving with " in line]
    assert [line.split("serving with ")[1].split(": ")[0] for line in told] == ["indexer-budget"]
    assert "vllm serve deepseek-ai/DeepSeek-V4-Flash-0731" in ended.stdout


def test_the_plan_is_printed_before_the_server_is_run(
    trees: dict[str, Path], tmp_path: Path
) -> None:
    """Profile, evidence, tree and command come first; then vLLM's own modules are run."""
    (tmp_path / "torch.py").write_text("raise ImportError('far enough')")
    path = f"{tmp_path}:{trees['patched']}"
    ended = run(PYTHONPATH=path, DSPARK_PROFILE="mi355x")
    assert "profile mi355x, evidence: unverified" in ended.stdout
    assert f"vLLM at {trees['patched']}" in ended.stdout
    assert "0001-rocm-dspark-draft-id-to-target-id.patch: applied" in ended.stdout
    assert "vllm serve deepseek-ai/DeepSeek-V4-Flash-0731" in ended.stdout
    assert f'File "{trees["patched"]}/vllm/__init__.py"' in ended.stderr
    assert ended.stderr.endswith("ImportError: far enough\n")


@pytest.mark.parametrize(
    ("words", "environ", "code", "said"),
    [
        ([], {}, 1, "DSPARK_PROFILE: is not set; it is one of mi355x, "),
        ([], {"DSPARK_PROFILE": "mi999"}, 1, "profile: got 'mi999'; it is one of mi355x, "),
        ([], {"DSPARK_PROFILE": "mi355x", "DSPARK_SPECULATION": "no"}, 1, "DSPARK_SPECULATION: got 'no'; give on or off"),
        ([], {"DSPARK_PROFILE": "mi355x", "DSPARK_RECIPE": "/none.toml"}, 1, "/none.toml: cannot be read (No such file or directory)"),
        ([], {"DSPARK_PREFLIGHT": "no"}, 1, "DSPARK_PROFILE: is not set"),
        (["--max-num-sequences", "8"], {"DSPARK_PROFILE": "mi355x"}, 1, "did you mean --max-num-seqs?"),
        (["no-such-command"], {}, 2, "no-such-command: no such command; server flags begin with -"),
    ],
)  # fmt: skip
def test_what_cannot_start_is_one_line(
    words: list[str], environ: dict[str, str], code: int, said: str
) -> None:
    """The setting, the value, the fix; nothing on stdout."""
    ended = run(*words, **environ)
    assert said in refused(ended)
    assert ended.returncode == code


def test_anything_else_runs_as_given() -> None:
    """A command is exec'd untouched, as `docker run IMAGE python3 -V` expects."""
    ended = run("echo", "as", "given")
    assert (ended.returncode, ended.stdout) == (0, "as given\n")


def test_a_script_that_does_not_say_what_runs_it_is_refused(tmp_path: Path) -> None:
    """A file without `#!` cannot become the process: one line, exit 2."""
    script = tmp_path / "script"
    script.write_text("echo hello")
    script.chmod(0o755)
    ended = run(str(script))
    assert refused(ended) == f"entrypoint: {script}: Exec format error; name a program"
    assert ended.returncode == 2


def test_without_vllm_the_entrypoint_says_where_to_run_it() -> None:
    """An interpreter that sees the standard library alone refuses in one line."""
    script = f"import runpy, sys; sys.argv = ['entrypoint']; runpy.run_path({str(ENTRYPOINT)!r}, run_name='__main__')"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", script],
        env={"DSPARK_PROFILE": "mi355x", "DSPARK_PREFLIGHT": "off"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "entrypoint: vllm: is not installed for " in refused(ended)


@pytest.mark.skipif(Path("/dev/kfd").exists(), reason="this machine has a GPU of AMD's")
def test_a_machine_without_the_card_is_refused_before_vllm_is_run(trees: dict[str, Path]) -> None:
    """The preflight's findings come first, with remedies; nothing is started."""
    ended = run(tree=trees["patched"], DSPARK_PROFILE="mi355x", DSPARK_PREFLIGHT="on")
    assert ended.returncode == 1
    assert "gpu.kfd: /dev/kfd: No such file or directory" in ended.stdout
    assert "vllm serve" not in ended.stdout
    assert ended.stderr.splitlines() == [
        "entrypoint: preflight of mi355x: exit 1; mend what fails above, or start all the same with"
        " DSPARK_PREFLIGHT=warn"
    ]


def test_an_unknown_preflight_mode_is_refused(trees: dict[str, Path]) -> None:
    """The legal values are told."""
    ended = run(tree=trees["patched"], DSPARK_PROFILE="mi355x", DSPARK_PREFLIGHT="later")
    line = refused(ended)
    assert "DSPARK_PREFLIGHT: got 'later'; give on, warn, full or off" in line
