"""The launch plan: what a profile and a user's flags become, and what is refused."""

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from deploy import plan, recipe
from deploy.__main__ import holds, main
from deploy.plan import PlanError, arguments, rules
from deploy.recipe import RecipeError
from tests.support import in_process

ROOT = Path(__file__).resolve().parents[2]
WORDS = recipe.load().vllm.vocabulary
AMD = [p.name for p in recipe.load().profiles.values() if not p.is_rehearsal]


def made(name: str = "mi355x", *extra: str, **environ: str) -> plan.Plan:
    """The plan of a profile with extra flags in an otherwise empty environment."""
    return plan.make(recipe.load().profile(name), extra, environ)


def value_of(argv: tuple[str, ...], flag: str) -> str:
    """The word after a flag."""
    return argv[argv.index(flag) + 1]


@pytest.mark.parametrize("name", AMD)
def test_an_amd_plan_serves_the_pinned_weights_with_probabilistic_dspark(name: str) -> None:
    """Model, revision, port and the speculative settings stand in the command."""
    loaded = recipe.load()
    argv = made(name).argv
    assert argv[:3] == ("vllm", "serve", loaded.profile(name).model.id)
    assert value_of(argv, "--revision") == loaded.profile(name).revision
    assert value_of(argv, "--port") == str(loaded.ports.serve)
    assert json.loads(value_of(argv, "--speculative-config")) == loaded.profile(name).speculative
    assert "probabilistic" in made(name).asks


@pytest.mark.parametrize("name", AMD)
def test_no_amd_plan_carries_anything_of_the_rehearsal(name: str) -> None:
    """Not even when a rehearsal's variables stand in the environment."""
    ambient = dict.fromkeys(("REHEARSAL_HOME", "REHEARSAL_FAULT", "REHEARSAL_ARCH"), "gfx942")
    text = made(name, **ambient).render("json").lower()
    assert "rehearsal" not in text
    assert "triton_interpret" not in text


def test_false_booleans_survive() -> None:
    """false becomes --no-flag, from the recipe or from the user."""
    assert arguments.words_of("enable-prefix-caching", False, WORDS) == [
        "--no-enable-prefix-caching"
    ]
    argv = made("mi325x", "--no-enforce-eager").argv
    assert "--no-enforce-eager" in argv
    assert "--enforce-eager" not in argv


@pytest.mark.parametrize(
    "extra",
    [("--max-num-seqs", "8"), ("--max-num-seqs=8",), ("--max_num_seqs=8",)],
)
def test_a_users_flag_replaces_the_recipes_and_is_told(extra: tuple[str, ...]) -> None:
    """The flag stands once, with the user's value, and a warning names both."""
    result = made("mi355x", *extra)
    assert result.argv.count("--max-num-seqs") == 1
    assert value_of(result.argv, "--max-num-seqs") == "8"
    assert "--max-num-seqs 8 overrides the recipe's 512" in result.warnings


@pytest.mark.parametrize(
    ("extra", "environ", "line"),
    [
        (["--max-num-sequences", "8"], {}, "--max-num-sequences: got an unknown server flag; vLLM 0.27.1 has no such flag; did you mean --max-num-seqs?"),
        (["--max-num-seqs", "--enforce-eager"], {}, "--max-num-seqs: got no value; give --max-num-seqs VALUE"),
        (["--speculative-config", "dspark"], {}, "--speculative-config: got 'dspark'; give a JSON object"),
        (["-pp", "2"], {}, "pipeline-parallel-size: got 2; DSpark needs 1: use tensor-parallel-size"),
        (["--speculative-config", '{"method":"dspark","num_speculative_tokens":3}'], {}, "num_speculative_tokens: got 3; the checkpoint's block is 5: give 5"),
        (["--speculative-config", '{"method":"dspark","num_speculative_tokens":5,"model":"x"}'], {}, "speculative model: got 'x'; on vLLM 0.27.1 the draft then loses its FP8 config (KeyError w13_weight_scale): leave the key out"),
        ([], {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "VLLM_USE_V2_MODEL_RUNNER: got '0'; DSpark needs the V2 model runner: unset it"),
        (["--logprobs-mode", "raw_logits"], {}, "logprobs-mode: got 'raw_logits'; the health gate cannot tell sampling by logits: give raw_logprobs or processed_logprobs"),
        (["--speculative-config.num_speculative_tokens=3"], {}, "num_speculative_tokens: got 3; the checkpoint's block is 5: give 5"),
        (["--spec-tokens", "3"], {}, "num_speculative_tokens: got 3; the checkpoint's block is 5: give 5"),
        (["--spec-tokens=5", "-sc.num_speculative_tokens=5"], {}, "--spec-tokens: got 5; --speculative-config has it too: give one"),
    ],
)  # fmt: skip
def test_a_plan_that_cannot_work_is_refused_with_one_line(
    extra: list[str], environ: dict[str, str], line: str
) -> None:
    """The setting, the value seen, the fix."""
    with pytest.raises(PlanError) as refused:
        made("mi355x", *extra, **environ)
    assert str(refused.value) == line


def test_a_key_of_the_draft_needs_a_draft() -> None:
    """With speculation off there is none whose other keys would stand beside it."""
    profile = recipe.load().profile("mi355x")
    with pytest.raises(PlanError, match="no draft that has them; give its method"):
        plan.make(profile, ["--spec-tokens=5"], {}, speculation=False)


@pytest.mark.parametrize(
    ("words", "flag", "value"),
    [
        (["--speculative-config.num_speculative_tokens=7"], "--speculative-config", {"method": "dspark", "num_speculative_tokens": 7, "draft_sample_method": "probabilistic"}),
        (["--spec-tokens", "7"], "--speculative-config", {"method": "dspark", "num_speculative_tokens": 7, "draft_sample_method": "probabilistic"}),
        (["--speculative-config", '{"method":"dspark","num-speculative-tokens":5}'], "--speculative-config", {"method": "dspark", "num_speculative_tokens": 5}),
        (["-cc.max_cudagraph_capture_size=1k"], "--compilation-config", {"cudagraph_mode": "NONE", "max_cudagraph_capture_size": 1000}),
        (["--attention_config.use_fp4_indexer_cache=False"], "--attention-config", {"use_fp4_indexer_cache": "False"}),
    ],
)  # fmt: skip
def test_single_keys_lie_over_the_recipes_and_are_served_as_one_object(
    words: list[str], flag: str, value: dict[str, object]
) -> None:
    """vLLM would serve the keys alone; the plan hands it the whole object."""
    argv = made("mi355x", *words).argv
    assert json.loads(value_of(argv, flag)) == value
    assert argv.count(flag) == 1
    assert not any(word.startswith("--spec-") for word in argv)


def test_no_draft_is_served_where_its_config_is_none() -> None:
    """vLLM reads the word None so."""
    result = made("mi355x", "--speculative-config", "None")
    assert "--speculative-config" not in result.argv
    assert "draft" not in result.asks


def test_what_vllm_drops_of_a_list_is_told() -> None:
    """An object beside single keys of it is not read."""
    words = ["--compilation-config", '{"mode":3}', "-cc.cudagraph_mode=NONE"]
    told = [w for w in made("mi355x", *words).warnings if "give one form" in w]
    assert len(told) == 1 and told[0].startswith("--compilation-config: vLLM takes its single keys")


@pytest.mark.parametrize(
    "words",
    [
        ["--block-size", "256"],
        ["--max-num-batched-tokens=8192", "--max_num_seqs", "512"],
        ["--moe-backend", "AITER"],
        ["--gpu-memory-utilization", ".85"],
        ["--no-enforce-eager", "--enable-auto-tool-choice"],
        ["--compilation-config", '{"cudagraph_mode": "NONE"}'],
        ["-cc.cudagraph_mode=NONE"],
        ["--speculative-config.num_speculative_tokens=5"],
        ["--spec-method", "dspark"],
        ["--served-model-name", "deepseek-v4-flash", "--port", "8000"],
        ["--model", "deepseek-ai/DeepSeek-V4-Flash-0731"],
    ],
)
def test_the_recipes_own_value_overrides_nothing(words: list[str]) -> None:
    """In whatever spelling it is given."""
    assert made("mi355x", *words).warnings == ()


def test_a_size_of_the_recipe_in_another_spelling_overrides_nothing() -> None:
    """16,000,000,000 bytes are 16g."""
    for text in ("16000000000", "16g", "16_000_000_000"):
        assert made("mi300x", "--kv-cache-memory-bytes", text).warnings == ()
    (told,) = made("mi300x", "--kv-cache-memory-bytes", "16G").warnings
    assert told == "--kv-cache-memory-bytes 17179869184 overrides the recipe's 16000000000"


def test_another_model_is_served_without_the_recipes_revision() -> None:
    """vLLM ignores --model beside the positional one, so the plan serves it there; a revision is of
    one model."""
    result = made("mi355x", "--model", "/weights/copy")
    assert result.argv[:3] == ("vllm", "serve", "/weights/copy")
    assert "--revision" not in result.argv and "--model" not in result.argv
    assert value_of(result.argv, "--served-model-name") == "deepseek-v4-flash"
    assert any(w.startswith("--model /weights/copy overrides") for w in result.warnings)
    pinned = made("mi355x", "--model", "/weights/copy", "--revision", "main")
    assert value_of(pinned.argv, "--revision") == "main"
    other = made("mi355x", "--revision", "other")
    assert value_of(other.argv, "--revision") == "other"
    assert any("--revision other overrides the recipe's 7872f01b" in w for w in other.warnings)


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ([], "NONE"),
        (["-cc.cudagraph_mode=full_decode_only"], "FULL_DECODE_ONLY"),
        (["--compilation-config", '{"cudagraph_mode":"Piecewise"}'], "PIECEWISE"),
        (["-cc.cudagraph_mode=2"], "FULL"),
        (["-cc.cudagraph_mode=null"], "FULL_AND_PIECEWISE"),
        (["-cc.cudagraph_mode=None"], "NONE"),
        (["--compilation-config", "{}", "-O0"], "NONE"),
        (["--compilation-config", "{}", "-O", "1"], "PIECEWISE"),
        (["--compilation-config", "{}", "-O=3"], "FULL_AND_PIECEWISE"),
        (["--enforce-eager", "-cc.cudagraph_mode=FULL"], "NONE"),
    ],
)
def test_the_mode_of_graphs_is_judged_in_every_spelling(words: list[str], mode: str) -> None:
    """As vLLM reads it: letters of either case, numbers, the default of the optimization level. The
    V1 runner with piecewise graphs is refused, other graphs are told."""
    profile = recipe.load().profile("mi355x")
    given = plan.read_flags(words, WORDS)
    intended = plan.intent(profile, given, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, speculation=False)
    assert intended.graph_mode == mode
    fatal = [f.rule for f in rules.check(intended) if f.fatal]
    assert fatal == (["graphs.piecewise_on_v1"] if "PIECEWISE" in mode else [])
    told = [w for w in made("mi355x", *words).warnings if "ROCm/clr issue 279" in w]
    assert len(told) == (mode != "NONE")


def test_experts_of_the_kernel_config_are_asked_for_too() -> None:
    """The same setting by its other name, which --moe-backend auto leaves to it."""
    asked = made("mi300x", "--kernel-config.moe_backend=AITER").asks
    assert "aiter-moe" in asked
    assert "aiter-moe" not in made("mi355x", "--kernel-config.moe_backend=triton", "--moe-backend=auto").asks  # fmt: skip


def test_a_longer_step_is_served_with_a_longer_stall_budget() -> None:
    """The remedy that the health service names is taken as it is, and what has to follow is said."""
    result = made("mi355x", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="1800")
    assert result.env["VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"] == "1800"
    assert (
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: got 1800; the stall budget is 1860 s then, and the"
        " health service has to be given the same variable"
    ) in result.warnings
    assert not any("stall budget" in w for w in made("mi355x").warnings)
    shorter = made("mi355x", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS="60").warnings
    assert not any("stall budget" in w for w in shorter)


@pytest.mark.parametrize("text", ["soon", "", "0", "-5", "1.5", "1e3", "99999999"])
def test_a_step_time_out_that_is_none_is_refused(text: str) -> None:
    """vLLM takes whole seconds, and would end with a traceback."""
    with pytest.raises(RecipeError) as refused:
        made("mi355x", VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=text)
    line = f"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: got {text!r}; give whole seconds, to 1e+06"
    assert str(refused.value) == line


def test_a_longer_wait_for_the_engine_is_served_with_a_longer_start_budget() -> None:
    """What ends after the health service has given the start up would be called a failure."""
    result = made("mi355x", VLLM_ENGINE_READY_TIMEOUT_S="10000")
    told = [w for w in result.warnings if w.startswith("VLLM_ENGINE_READY_TIMEOUT_S: got 10000")]
    assert len(told) == 1 and "the start budget is 10900 s then" in told[0]
    within = made("mi355x", VLLM_ENGINE_READY_TIMEOUT_S="5400").warnings
    assert not any("start budget" in w for w in within)


def test_every_variable_that_a_remedy_raises_is_served_and_shown() -> None:
    """The plan takes what the table of causes tells to set, and prints it."""
    text = (ROOT / "healthcheck/explain/signatures.tsv").read_text("utf-8")
    told = (r"raise (VLLM_[A-Z_]+)", r"give (VLLM_[A-Z_]+) more")
    names = {name for words in told for name in re.findall(words, text)}
    assert len(names) > 1
    for name in names:
        assert made("mi355x", **{name: "7201"}).env[name] == "7201"


def test_what_an_operator_sets_for_the_server_is_shown_but_for_secrets() -> None:
    """Variables of vLLM, HSA, NCCL and AITER stand in the printed plan, no key or token does."""
    told = {"VLLM_RPC_TIMEOUT": "9", "HSA_NO_SCRATCH_RECLAIM": "1", "NCCL_DEBUG": "INFO"}
    other = {"VLLM_API_KEY": "sk-hidden", "HF_TOKEN": "hf-hidden", "HOME": "/root"}
    result = made("mi355x", **told, **other)
    assert told.items() <= result.env.items()
    assert not other.keys() & result.env.keys()
    for form in ("shell", "env", "json"):
        assert "hidden" not in result.render(form) and "NCCL_DEBUG" in result.render(form)


def test_a_recipe_whose_stall_budget_is_under_its_step_is_refused() -> None:
    """It would call a slow step a stall."""
    profile = recipe.load().profile("mi355x")
    short = replace(profile, health=replace(profile.health, stall_budget_s=600.0))
    with pytest.raises(PlanError, match=r"stall_budget_s: got 600; .* is 600: give more"):
        plan.make(short)


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_logprobs_of_either_kind_are_served(mode: str) -> None:
    """What is a log-probability can be reckoned with, before or after the sampler's penalties."""
    assert f"--logprobs-mode {mode}" in " ".join(made("mi355x", "--logprobs-mode", mode).argv)


def test_a_value_nested_without_end_is_refused() -> None:
    """JSON deeper than any parser goes is no JSON object."""
    with pytest.raises(PlanError, match="--speculative-config: got .*; give a JSON object"):
        made("mi355x", "--speculative-config", '{"a":' * 100_000)


@pytest.mark.parametrize(
    ("name", "flags", "environ", "has"),
    [
        ("mi355x", (), {}, True),
        ("mi355x", ("--moe-backend", "auto"), {}, True),
        ("mi355x", ("--moe-backend", "triton_unfused"), {}, False),
        ("mi355x", ("--moe-backend", "auto"), {"VLLM_ROCM_USE_AITER": "0"}, False),
        ("mi300x", (), {}, False),
        ("mi300x", ("--moe-backend", "aiter"), {}, True),
        ("mi325x", (), {}, False),
    ],
)
def test_aiter_experts_are_asked_for_by_name_or_on_gfx950(
    name: str, flags: tuple[str, ...], environ: dict[str, str], has: bool
) -> None:
    """As vLLM chooses: by name, or by itself where the kernels are and AITER is on."""
    assert ("aiter-moe" in made(name, *flags, **environ).asks) is has


@pytest.mark.parametrize(
    ("flags", "longest"), [((), 393_216), (("--max-model-len=2k",), 2000), (("--max-model-len=auto",), None)]
)  # fmt: skip
def test_the_longest_sequence_is_what_max_model_len_says(
    flags: tuple[str, ...], longest: int | None
) -> None:
    """In vLLM's spellings; None for what only a start tells."""
    assert made("mi355x", *flags).longest == longest


def test_speculation_can_be_switched_off() -> None:
    """The switch leaves the draft's flag out and says that nothing is drafted."""
    result = plan.make(recipe.load().profile("mi355x"), [], {}, speculation=False)
    assert "--speculative-config" not in result.argv
    assert "probabilistic" not in result.asks


@pytest.mark.parametrize("name", AMD)
def test_graphs_are_off_until_they_are_chosen(name: str) -> None:
    """The switch serves with the profile's mode and says why that is a choice; off says nothing."""
    profile = recipe.load().profile(name)
    assert '{"cudagraph_mode":"NONE"}' in plan.make(profile).argv
    assert plan.make(profile).warnings == ()
    if profile.graphs is None:
        with pytest.raises(RecipeError) as refused:
            plan.make(profile, graphs=True)
        assert str(refused.value) == (
            f"DSPARK_GRAPHS: got 'on'; no public run of {name} held up with graphs: leave it off"
        )
        return
    chosen = plan.make(profile, graphs=True)
    config = json.loads(value_of(chosen.argv, "--compilation-config"))
    assert config == {"cudagraph_mode": profile.graphs}
    (told,) = chosen.warnings
    assert profile.graphs in told
    assert "ROCm/clr issue 279" in told


def test_no_mode_of_graphs_is_recommended_over_another() -> None:
    """One set by a flag gets the words of the switch: NONE is right, and the other way to have them."""
    profile = recipe.load().profile("mi355x")
    by_switch = plan.make(profile, graphs=True).warnings
    for mode in ("PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"):
        flag = json.dumps({"cudagraph_mode": mode})
        told = next(w for w in made("mi355x", "--compilation-config", flag).warnings if "279" in w)
        assert told.replace(mode, profile.graphs or "") == by_switch[0]
        assert "NONE is right" in told and "DSPARK_GRAPHS=on" in told


@pytest.mark.parametrize(
    ("batch", "seqs", "fits"),
    [("256", "63", True), ("256", "64", False), ("16k", "4000", False), ("16k", "3999", True), ("16K", "4000", True)],
)  # fmt: skip
def test_the_draft_leaves_room_in_the_batch(batch: str, seqs: str, fits: bool) -> None:
    """K - 1 slots a sequence, sizes in vLLM's spellings; what leaves none is refused as by vLLM."""
    flags = ["--max-num-batched-tokens", batch, "--max-num-seqs", seqs]
    if fits:
        made("mi325x", *flags)
        return
    with pytest.raises(PlanError, match=r"max-num-batched-tokens: got \d+; the draft takes 4 for"):
        made("mi325x", *flags)


def test_unset_sequences_are_vllms_own() -> None:
    """A card of 70 GiB or more gets 1,024 of them, for which 256 tokens are too few."""
    profile = recipe.load().profile("mi325x")
    serve = {k: v for k, v in profile.serve.items() if k != "max-num-seqs"}
    with pytest.raises(PlanError, match="each of 1024 sequences.*more than 4096"):
        plan.make(replace(profile, serve=serve))


def test_the_environment_of_the_container_wins_and_is_told() -> None:
    """What the operator sets replaces the recipe's value, with a warning that names both."""
    result = made("mi355x", HF_HUB_OFFLINE="0")
    assert result.env["HF_HUB_OFFLINE"] == "0"
    assert "environment HF_HUB_OFFLINE=0 overrides the recipe's 1" in result.warnings


def test_the_rehearsal_needs_its_models() -> None:
    """Planned outside a rehearsal, the profile says what starts one."""
    with pytest.raises(PlanError, match="REHEARSAL_HOME: is not set.*make rehearsal"):
        made("rehearsal")


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    """`python3 -m deploy` as a user runs it."""
    env = {k: v for k, v in os.environ.items() if k != "DSPARK_PROFILE"}
    return in_process.run(main, *words, environ=env)


def test_the_four_formats_say_the_same() -> None:
    """argv, env, json and shell are one plan in four spellings."""
    as_json = json.loads(cli("plan", "--profile", "mi300x", "--format", "json").stdout)
    argv = cli("plan", "--profile", "mi300x", "--format", "argv").stdout.splitlines()
    env = cli("plan", "--profile", "mi300x", "--format", "env").stdout.splitlines()
    shell = shlex.split(cli("plan", "--profile", "mi300x").stdout.replace("\\\n", " "))
    assert argv == as_json["argv"]
    assert env == [f"{k}={v}" for k, v in as_json["env"].items()]
    assert shell == env + argv


def test_evidence_and_warnings_stand_beside_the_plan_and_not_in_it() -> None:
    """What to know first goes to stderr; stdout stays a command that can be run."""
    ended = cli("plan", "--profile", "mi355x", "--", "--max-num-seqs", "8")
    assert "evidence: unverified" in ended.stderr
    assert "# warning: --max-num-seqs 8 overrides the recipe's 512" in ended.stderr
    assert "unverified" not in ended.stdout and "warning" not in ended.stdout


def test_every_profile_is_listed_with_its_evidence() -> None:
    """One line a profile: its name, and what its claims rest on."""
    lines = cli("profiles").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(recipe.load().profiles)
    assert all(("unverified: " in line) != line.startswith("rehearsal") for line in lines)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plan"], "deploy: --profile: got none; it is one of mi355x, mi350x, mi325x, mi308x, mi300x, mi300x-8, rehearsal-amd, rehearsal"),
        (["plan", "--profile", "mi999"], "deploy: profile: got 'mi999'; it is one of mi355x, mi350x, mi325x, mi308x, mi300x, mi300x-8, rehearsal-amd, rehearsal"),
        (["plan", "--profile", "mi355x", "--", "-pp", "2"], "deploy: pipeline-parallel-size: got 2; DSpark needs 1: use tensor-parallel-size"),
    ],
)  # fmt: skip
def test_a_refused_plan_is_one_line_and_exit_1(words: list[str], line: str) -> None:
    """Nothing on stdout, one line on stderr."""
    ended = cli(*words)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", line + "\n")


def tracked(*skipped: str) -> list[Path]:
    """Every file of the checkout but tests and those named."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    kept = (n for n in listed if n and not n.startswith("tests/") and n not in skipped)
    return [ROOT / name for name in kept if (ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    """Where a pattern occurs, as FILE:LINE: TEXT."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8", "ignore").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_other_file_repeats_a_flag_with_its_value() -> None:
    """What is served stands in recipe.toml alone; messages may speak of a flag by its name."""
    repeated = set()
    for profile in recipe.load().profiles.values():
        for flag, value in profile.serve.items():
            if flag == "host":  # the health service has an option of that name
                continue
            words = arguments.words_of(flag, value, WORDS)
            repeated.add("[= ]+".join(re.escape(word) for word in words))
    values = {words for words in repeated if "[= ]+" in words}
    pattern = re.compile("|".join(rf"{words}(?![\w-])" for words in values))
    assert lines_with(pattern, tracked("deploy/recipe.toml")) == []


def test_no_container_or_manifest_names_a_server_flag() -> None:
    """Compose, Kubernetes, images and make leave every flag to the plan."""
    flags = {flag for p in recipe.load().profiles.values() for flag in p.serve}
    own = {"host"}  # of the health service, and the address that the rehearsal's container needs
    names = "|".join(re.escape(flag) for flag in {*flags, "speculative-config"} - own)
    kinds = (".yaml", ".yml", ".sh")
    files = [
        path
        for path in tracked()
        if path.suffix in kinds
        or path.name.startswith(("Dockerfile", "Makefile"))
        or path.name == "run"
    ]
    assert len(files) > 20
    assert lines_with(re.compile(rf"--(no-)?({names})(?![\w-])"), files) == []


def test_the_pins_stand_in_recipe_and_release() -> None:
    """Digest and revision are nowhere else; the Dockerfile's default has a test of its own."""
    loaded = recipe.load()
    revision = loaded.profile("mi355x").revision
    pattern = re.compile(f"{loaded.vllm.digest}|{revision}")
    file = str((loaded.vllm.folder / "release.toml").relative_to(ROOT))
    assert lines_with(pattern, tracked("deploy/recipe.toml", file, "docker/Dockerfile")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", "sk-hidden"],
        ["--api-key=sk-hidden"],
        ["--api_key", "sk-hidden"],
        ["--api_key=sk-hidden"],
        ["--api-key", "sk-one", "sk-hidden"],
        ["--hf-token", "sk-hidden"],
        ["--hf_token=sk-hidden"],
        ["--max-num-seqs", "8", "--hf-token", "sk-hidden"],
        ["--api-ke", "sk-hidden"],
    ],
    ids=" ".join,
)
def test_a_secret_on_the_command_line_is_refused_and_not_shown(words: list[str]) -> None:
    """The plan is printed into the log: whatever way vLLM would take a secret, it is refused, and
    the way by a file is named."""
    with pytest.raises(PlanError) as caught:
        plan.make(recipe.load().profile("mi355x"), words)
    message = str(caught.value)
    assert "sk-" not in message
    if "--api-ke" not in words:
        assert "_FILE" in message and "\n" not in message


def test_a_plan_says_what_its_image_holds_and_where_aiter_is_wrong() -> None:
    """Versions as the release has them; the fault past 2 GiB is told unless AITER is past it."""
    told = cli("plan", "--profile", "mi355x").stderr
    held = recipe.load().vllm
    line = f"# the image holds ROCm {held.rocm}, torch {held.torch}, Triton {held.triton}, AITER "
    assert line in told
    assert "# AITER before 0.1.20 scores pages past 2 GiB as zero" in told
    assert len(holds(replace(held, aiter="0.1.20"))) == 1
    assert len(holds(replace(held, aiter="unknown"))) == 2
    assert "the image holds" not in cli("plan", "--profile", "rehearsal").stderr
