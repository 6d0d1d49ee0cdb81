"""The recipe file: what it yields, and the exact line for each thing it must not hold."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from deploy import recipe
from deploy.recipe import RecipeError, tables

TEXT = recipe.FILE.read_text(encoding="utf-8")
PROFILES = [
    *("mi355x", "mi350x", "mi325x", "mi308x", "mi300x", "mi300x-8"),
    *("rehearsal-amd", "rehearsal"),
]

# (what is replaced, by what, the line that must come, without the file's name)
BAD = [
    ("schema = 1", "schema = 2", "schema: got 2; this code reads schema 1"),
    (
        "max-num-seqs = 512",
        "max-num-seq = 512",
        "profiles.mi355x.serve.max-num-seq: got 512; vLLM 0.27.1 has no such flag;"
        " did you mean max-num-seqs?",
    ),
    (
        "max-num-seqs = 512",
        'max-num-seqs = "many"',
        "profiles.mi355x.serve.max-num-seqs: got 'many'; vLLM 0.27.1 takes an int",
    ),
    (
        "trust-remote-code = true",
        "trust-remote-code = 1",
        "serve.trust-remote-code: got 1; vLLM 0.27.1 takes a bool",
    ),
    (
        'kv-cache-dtype = "fp8"',
        'kv-cache-dtype = "fp9"',
        "serve.kv-cache-dtype: got 'fp9'; vLLM 0.27.1 takes one of auto, ",
    ),
    (
        "block-size = 256",
        "port = 9000",
        "serve.port: got 9000; it comes from ports.serve",
    ),
    (
        'method = "dspark"',
        'methud = "dspark"',
        "speculative.methud: got 'dspark'; vLLM 0.27.1 has no such speculative setting;"
        " did you mean method?",
    ),
    (
        "VLLM_ROCM_USE_AITER =",
        "VLLM_ROCM_USE_AITR =",
        "env.VLLM_ROCM_USE_AITR: got '1'; vLLM 0.27.1 reads no such;"
        " did you mean VLLM_ROCM_USE_AITER?",
    ),
    (
        'HF_HUB_OFFLINE = "1" #',
        "HF_HUB_OFFLINE = 1 #",
        "env.HF_HUB_OFFLINE: got 1; environment values are strings: quote",
    ),
    (
        "scrape_interval_s = 5.0",
        "scrape_intervall_s = 5.0",
        "profiles.mi355x.health.scrape_intervall_s: got 5.0; no such key;"
        " did you mean scrape_interval_s?",
    ),
    (
        "scrape_interval_s = 5.0",
        "scrape_interval_s = 0",
        "profiles.mi355x.health.scrape_interval_s: got 0; give a number above 0",
    ),
    (
        "scrape_interval_s = 5.0",
        "scrape_interval_s = true",
        "profiles.mi355x.health.scrape_interval_s: got true; give a float",
    ),
    (
        "long_prompt_tokens = [1500, 8000, 32000]",
        "long_prompt_tokens = 7000",
        "profiles.mi355x.health.long_prompt_tokens: got 7000; give a list of int",
    ),
    (
        "long_prompt_tokens = [1500, 8000, 32000]",
        "long_prompt_tokens = [1500, true]",
        "profiles.mi355x.health.long_prompt_tokens: got [1500, true]; give a list of int",
    ),
    (
        "long_prompt_tokens = [1500, 8000, 32000]",
        "long_prompt_tokens = [0, 1500]",
        "profiles.mi355x.health.long_prompt_tokens: got [0, 1500]; give a number above 0",
    ),
    (
        "long_prompt_tokens = [1500, 8000, 32000]",
        "long_prompt_tokens = [8000, 1500]",
        "profiles.mi355x.health.long_prompt_tokens: got [8000, 1500]; give lengths from short to",
    ),
    (
        'acceptance_effect = "degraded"',
        'acceptance_effect = "panic"',
        "profiles.mi355x.health.acceptance_effect: got 'panic'; give one of degraded, not-ready",
    ),
    (
        "acceptance_floor = 0.15",
        "acceptance_floor = 15",
        "profiles.mi355x.health.acceptance_floor: got 15; give a fraction to 1",
    ),
    ('release = "0.27.1"', "release = 27", "release: got 27; name a folder of deploy/releases"),
    (
        'evidence = "unverified"\nnote = "DSpark',
        'note = "DSpark',
        "profiles.mi355x.evidence: got ''; say what ran, where and when, or \"unverified\"",
    ),
    (
        "tensor-parallel-size = 4",
        "block-size = 256",
        "profiles.mi355x.serve.block-size: got 256; a profile holds differences only:"
        " drop the line",
    ),
    (
        'like = "mi355x"',
        'like = "mi400"',
        "profiles.mi350x.like: got 'mi400'; name a profile that stands alone: mi355x, ",
    ),
    (
        "scrape_interval_s = 5.0",
        "scrape_interval_s = nan",
        "health.scrape_interval_s: got NaN; give a finite number",
    ),
    (
        "scrape_interval_s = 5.0",
        "scrape_interval_s = 1e9",
        "profiles.mi355x.health.scrape_interval_s: got 1000000000.0; give seconds, to 1e+06",
    ),
    (
        "gpu-memory-utilization = ",
        "gpu-memory-utilization = inf #",
        "profiles.mi355x.serve.gpu-memory-utilization: got Infinity; give a finite number",
    ),
    (
        "max-num-seqs = 512",
        f"max-num-seqs = 0x{'f' * 5000}",
        f"profiles.mi355x.serve.max-num-seqs: got '0x{'f' * 74}...; give a number of 64 bits",
    ),
    (
        'HF_HUB_OFFLINE = "1" #',
        'HF_HUB_OFFLINE = "1\\u0000" #',
        "env.HF_HUB_OFFLINE: got '1\\x00'; leave control characters out",
    ),
    (
        "[profiles.mi300x]",
        '[profiles."mi300x\\n"]',
        "profiles: got 'mi300x\\n'; leave control characters out",
    ),
    (
        'id = "deepseek-ai',
        'id = "--deepseek-ai',
        "profiles.mi355x.model.id: got '--deepseek-ai/DeepSeek-V4-Flash-0731'; name a model of",
    ),
    ("count = 4", "count = 0", "profiles.mi355x.gpu.count: got 0; give a number above 0"),
    ("serve = 8000", "serve = 80000", "ports.serve: got 80000; give a port from 1 to 65535"),
    (
        'like = "mi355x"',
        'like = ["mi355x"]',
        'profiles.mi350x.like: got ["mi355x"]; name a profile that stands alone: mi355x, ',
    ),
    (
        "[profiles.mi300x]",
        '[profiles.mi300x]\ninherit = "yes"',
        "profiles.mi300x.inherit: got 'yes'; give true or false",
    ),
    (
        "HF_HUB_OFFLINE =",
        "hf_hub_offline =",
        "env.hf_hub_offline: got '1'; give an upper-case variable name",
    ),
    ("[profiles.mi350x]", "[profiles]\nmi340x = 1\n[profiles.mi350x]", "profiles.mi340x: got 1; give a table"),
    ('graphs = "FULL_AND', 'graphs = "FULL_OR', "profiles.mi355x.graphs: got 'FULL_OR_PIECEWISE'; give one of NONE, PIECEWISE, FULL, "),
    ('graphs = "FULL_AND_PIECEWISE"', "graphs = true", "profiles.mi355x.graphs: got true; give one of NONE, "),
    ("[ports]\nserve = 8000\nhealth = 8080", "", "[ports]: is missing; add the table"),
    ("health = 8080", "", "ports.health: is missing; add it"),
    ("[ports]", "[portz]", "portz: got "),
    ("serve = 8000", 'serve = "8000"', "ports.serve: got '8000'; give an int"),
    ('name = "AMD Instinct MI355X", arch = "gfx950", compute_units = 256, memory_gb = 288, count = 4 }\ngraphs', 'name = "x", compute_units = 1, memory_gb = 1, count = 1 }\ngraphs', "profiles.mi355x.gpu.arch: is missing; add it"),
]  # fmt: skip


def written(tmp_path: Path, text: str) -> Path:
    """A recipe file of this text."""
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_shipped_recipe_has_every_profile_with_its_evidence() -> None:
    """Every named profile is there, says its evidence, and the AMD ones claim no run of ours."""
    loaded = recipe.load()
    assert list(loaded.profiles) == PROFILES
    for profile in loaded.profiles.values():
        assert profile.note
        assert (profile.evidence == recipe.UNVERIFIED) == (not profile.is_rehearsal)


def test_the_speculative_settings_are_those_of_the_field() -> None:
    """AMD classes draft five tokens probabilistically with DSpark and name no draft model."""
    for profile in recipe.load().profiles.values():
        assert profile.speculative is not None
        own = dict(profile.speculative)
        if profile.name == "rehearsal":
            own.pop("model")
        assert own == {
            "method": "dspark",
            "num_speculative_tokens": 5,
            "draft_sample_method": "probabilistic",
        }


def test_a_profile_like_another_differs_in_nothing_it_does_not_state() -> None:
    """MI350X serves as MI355X does."""
    loaded = recipe.load()
    assert loaded.profile("mi350x").serve == loaded.profile("mi355x").serve
    assert loaded.profile("mi350x").graphs == loaded.profile("mi355x").graphs is not None
    assert loaded.profile("mi350x").gpu != loaded.profile("mi355x").gpu


def test_every_amd_profile_bounds_what_unset_flags_would_cost() -> None:
    """Length, sequences and batch stand in each, graphs are off, and AITER's warnings are."""
    for profile in recipe.load().profiles.values():
        if profile.gpu is None:
            continue
        assert {"max-model-len", "max-num-seqs", "max-num-batched-tokens"} <= set(profile.serve)
        assert profile.serve["compilation-config"] == {"cudagraph_mode": "NONE"}
        assert profile.env["AITER_TRITON_LOG_LEVEL"] == "ERROR"
        assert profile.gpu.count == profile.serve["tensor-parallel-size"]


def test_the_amd_rehearsal_serves_with_the_flags_of_the_cards() -> None:
    """Every flag that all cards share, but the address; and its speculative settings."""
    loaded = recipe.load()
    card, rehearsal = loaded.profile("mi355x"), loaded.profile("rehearsal-amd")
    shared = {
        name
        for name in card.serve
        if all(p.serve.get(name) == card.serve[name] for p in loaded.profiles.values() if p.gpu)
    }
    assert {"kv-cache-dtype", "block-size", "tokenizer-mode", "reasoning-parser"} <= shared
    own = {"host", "shutdown-timeout"}
    differing = {name for name in shared if rehearsal.serve.get(name) != card.serve[name]}
    assert differing == own
    assert rehearsal.speculative == card.speculative
    assert rehearsal.env["VLLM_ROCM_USE_AITER"] == "1"


def test_the_rehearsal_inherits_no_amd_flag() -> None:
    """A CPU server is not asked for AITER or an FP8 cache."""
    rehearsal = recipe.load().profile("rehearsal")
    assert "kv-cache-dtype" not in rehearsal.serve
    assert "VLLM_ROCM_USE_AITER" not in rehearsal.env


@pytest.mark.parametrize(("old", "new", "line"), BAD, ids=[b[2].split(";")[0][:60] for b in BAD])
def test_a_bad_recipe_is_refused_with_one_line(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    """File, key, value seen and fix, in one line."""
    assert old in TEXT, "the test's own anchor is gone from the recipe"
    path = written(tmp_path, TEXT.replace(old, new, 1))
    with pytest.raises(RecipeError) as refused:
        recipe.load(path)
    message = str(refused.value)
    assert message.startswith(f"{path}: {line}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"schema = ", "is not TOML: "),
        (b"schema = " + b"[" * 3000 + b"]" * 3000, "tables in tables without end"),
        (b"#" * (tables.LIMIT_BYTES + 1), "cannot be read (File too large)"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"", "schema: got null; this code reads schema 1"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    """Broken TOML, wrong encoding and an empty file each get their line."""
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(RecipeError, match=re.escape(said)):
        recipe.load(path)


def test_what_an_editor_of_windows_makes_of_it_is_a_recipe(tmp_path: Path) -> None:
    """A byte order mark and CRLF change nothing."""
    path = tmp_path / "recipe.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert recipe.load(path) == recipe.load()


def test_an_unreadable_recipe_names_the_file(tmp_path: Path) -> None:
    """A path that is not there, or a folder, is told with the system's reason."""
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(RecipeError, match="cannot be read"):
            recipe.load(path)


def test_an_unknown_profile_lists_those_there_are() -> None:
    """The message holds what may be said instead."""
    with pytest.raises(RecipeError, match="got 'mi999'; it is one of mi355x, mi350x"):
        recipe.load().profile("mi999")


def released(folder: Path, text: str) -> recipe.Recipe:
    """The recipe with this laid over by the default release's own folder."""
    made = folder / recipe.load().vllm.version
    shutil.copytree(recipe.load().vllm.folder, made)
    (made / "recipe.toml").write_text(text, encoding="utf-8")
    return recipe.load(releases=folder)


def test_a_release_may_differ_in_what_vllm_reads(tmp_path: Path) -> None:
    """Its folder's tables lie over the common ones, over a profile's and over those of profiles
    that are like it; a profile's own line stays before what is laid over the common ones."""
    seen = released(
        tmp_path,
        """
        [env]
        VLLM_USE_V2_MODEL_RUNNER = "1"
        [serve]
        shutdown-timeout = 90
        [profiles.mi355x.serve]
        max-num-seqs = 256
        [profiles.mi350x.speculative]
        draft_sample_method = "greedy"
        """,
    )
    first, like, other = (seen.profile(name) for name in ("mi355x", "mi350x", "mi300x"))
    assert [p.serve["max-num-seqs"] for p in (first, like, other)] == [256, 256, 16]
    assert {p.env["VLLM_USE_V2_MODEL_RUNNER"] for p in (first, like, other)} == {"1"}
    assert {p.serve["shutdown-timeout"] for p in (first, like, other)} == {90}
    assert seen.profile("rehearsal-amd").serve["shutdown-timeout"] == 12
    assert "VLLM_USE_V2_MODEL_RUNNER" not in seen.profile("rehearsal").env
    methods = [(p.speculative or {})["draft_sample_method"] for p in (first, like)]
    assert methods == ["probabilistic", "greedy"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("schema = 1", "schema: got 1; no such key"),
        ("[health]\nneedle = false", 'health: got {"needle": false}; no such key'),
        ("[profiles.mi999.env]", 'profiles.mi999: got {"env": {}}; no such key'),
        ("[profiles.mi300x]\ngraphs = 'FULL'", "profiles.mi300x.graphs: got 'FULL'; no such key"),
        ("[profiles]\nmi300x = 1", "profiles.mi300x: got 1; give a table"),
        ("[profiles.mi300x.serve]\nmax-seqs = 1", "profiles.mi300x.serve.max-seqs: got 1; vLLM "),
        ("[env]\nVLLM_NO = '1'", "env.VLLM_NO: got '1'; vLLM "),
        (
            "[profiles.mi350x.serve]\nmax-num-seqs = 512",
            "profiles.mi350x.serve.max-num-seqs: got 512; a profile holds differences only: drop",
        ),
        ("[serve]\nblock-size = 256", "serve.block-size: got 256; a profile holds differences"),
    ],
)  # fmt: skip
def test_what_a_release_must_not_lay_over_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    """The release's own file, the key, the value seen, the fix."""
    with pytest.raises(RecipeError) as refused:
        released(tmp_path, text)
    file = tmp_path / recipe.load().vllm.version / "recipe.toml"
    assert str(refused.value).startswith(f"{file}: {line}")


def test_health_defaults_are_the_recipes_values() -> None:
    """The dataclass's defaults and the recipe's [health] table do not drift apart."""
    table = tomllib.loads(TEXT)["health"]
    table["long_prompt_tokens"] = tuple(table["long_prompt_tokens"])
    assert recipe.Health(**table) == recipe.Health()
