"""What public reports showed, each in a made log of the same shape: the cause and what to do.

And variants of each kind of death, so that the kind is known and not only the line of the report.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy import recipe
from deploy.__main__ import main as deploy_main
from healthcheck.explain import Explainer, Explanation, Finding, Verdict, explain_stream, places
from healthcheck.explain.deaths import LITERALS, weight_of
from healthcheck.explain.signatures import load
from healthcheck.reasons import REASONS, SMOKE_REASONS
from tests.support.log_forms import FORMS
from tests.support.log_samples import SAMPLES

CASES = Path(__file__).with_name("data") / "cases"
W1, W0 = "Worker_TP1 pid=481", "Worker_TP0 pid=480"
START = "(APIServer pid=1) INFO 11-30 05:00:00 [api_utils.py:273] non-default args: {'port': 8000}"
READY = "(APIServer pid=1) INFO:     Application startup complete."
DIED = f"(EngineCore pid=311) ERROR 11-30 05:02:30 [m.py:296] {SAMPLES['worker.died']}"
RANK = "(Worker_TP1 pid=481) "


@dataclass(frozen=True)
class Right:
    """What must come out: the cause, who said it, what the remedy and the evidence hold."""

    cause: str
    process: str
    remedy: tuple[str, ...] = ()
    text: str = ""
    frame: str = ""
    stage: str = ""
    not_in_remedy: str = "\n"


RIGHT = {
    "01-aiter-stale-lock-new-format": Right(
        "aiter.baton_wait", W0, ("lock_module_moe_ck2stages",), stage="compile"
    ),
    "02-aiter-sampler-fault-cri": Right(
        "rocm.mem_fault", "", ("top_k_renorm_probs of the sampler (line", "max-num-seqs"),
        not_in_remedy="max-num-batched-tokens",
    ),
    "03-sparse-mla-warmup-segfault": Right(
        "native.segfault", W1, ("Warming up DeepSeek V4 sparse MLA attention",),
        "Segfault encountered", "0xffffffffffffffff",
    ),
    "04b-fault-past-2048": Right(
        "rocm.mem_fault", "", ("read-only page", "batch does not matter", "2,048 tokens"),
        not_in_remedy="max-num",
    ),
    "05-nccl-watchdog-after-jit": Right(
        "rccl.watchdog", W1, ("_ALLGATHER_BASE", "600031 ms", "_prepare_dflash_inputs_kernel"),
    ),
    "09-failed-to-infer-device": Right("rocm.no_gpu", "APIServer pid=1", ("/dev/kfd", "group_add")),
    "12-gpu-hang-hw-exception": Right("rocm.hang", "", ("node 9", "GPU Hang")),
    "13-no-space-left": Right(
        "fs.no_space", "Worker_TP2 pid=482", ("/var/cache/dspark-rocm/triton/7Q4",), frame="put"
    ),
    "14-aiter-abort": Right(
        "aiter.check", W1, ("fused_qk_norm_rope_cache_quant.cu:3278",),
        "must be contiguous within a block", "forward",
    ),
    "15-lds-gfx950": Right(
        "triton.lds_gfx950", W0, ("165888", "163840", "releases of Triton"),
        not_in_remedy="use the profile",
    ),
    "17-triton-hip-209-serving": Right(
        "rocm.no_code_object", W0, ("no code for this GPU",), frame="_init_handles"
    ),
    "18-hsa-exception": Right("rocm.hsa_exception", "", text="HSA_STATUS_ERROR_EXCEPTION"),
    "18b-hsa-exception-terminate": Right("rocm.hsa_exception", "", text="0x1016"),
    "18c-hsa-exception-abort-at-start": Right("rocm.hsa_exception", "", text="0x1016"),
    "18d-hsa-memfault": Right("rocm.hsa_memory", "", text="HSA_STATUS_ERROR_MEMORY_FAULT"),
    "19-hsa-oor-memory-free": Right(
        "rocm.hsa_limits", "", ("180112 MB", "threads"), not_in_remedy="KV pool"
    ),
    "20-unknown-spec-key": Right(
        "unclassified", "APIServer pid=1",
        text="SpeculativeConfig enable_adaptive_verification Unexpected keyword argument",
        frame="create_speculative_config",
    ),
    "22-nccl-memlock": Right("rccl.memlock", "", ("memlock",), "Cannot allocate memory"),
    "23b-shm-rccl-bus-error": Right("shm.too_small", "", ("9637888", "shm_size")),
    "G-glued-line": Right("unclassified", "APIServer pid=1", text="something nobody knows"),
    "J-json-logging": Right("unclassified", "EngineCore pid=2", text="ValueError: something"),
}  # fmt: skip


def _explained(lines: list[str]) -> Explanation:
    """By block, and the same by line."""
    explainer = Explainer()
    for line in lines:
        explainer.feed(line)
    found = explain_stream(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))
    assert found == explainer.result()
    return found


def _cause(lines: list[str]) -> Finding:
    found = _explained(lines)
    assert found.cause is not None, found.headline
    return found.cause


@pytest.mark.parametrize("name", RIGHT)
def test_the_cause_of_a_reported_failure_is_named(name: str) -> None:
    """The cause and not its consequences, with what the log itself says of it in the remedy."""
    right = RIGHT[name]
    found = _explained((CASES / f"{name}.log").read_text().splitlines())
    cause = found.cause
    assert cause is not None, found.headline
    assert (cause.id, cause.process) == (right.cause, right.process)
    assert all(part in cause.remedy for part in right.remedy), cause.remedy
    assert right.not_in_remedy not in cause.remedy
    assert right.text in cause.evidence[0].text
    assert right.frame in "".join(frame.function for frame in cause.frames[-1:])
    assert found.startup is not None
    assert right.stage in (found.startup.reached, "")


def test_every_case_has_its_right_value() -> None:
    """Nothing lies there that no test reads."""
    assert {path.stem for path in CASES.iterdir()} == {*RIGHT, "01c-aiter-building-new-format"}


def test_a_build_in_progress_is_no_fault() -> None:
    """Ranks that wait for the one that builds are a start that goes on, at its compile stage."""
    found = _explained((CASES / "01c-aiter-building-new-format.log").read_text().splitlines())
    assert found.verdict is Verdict.LOADING
    assert found.startup is not None
    assert found.startup.reached == "compile"


# --- kinds of death

HSA = ":0:rocdevice.cpp            :{}: 99 us:  Callback: Queue 0x7f35 aborting with error : {}"
# Lines of each kind that no signature knows.
UNKNOWN_DEATHS = (
    HSA.format(2993, "HSA_STATUS_ERROR_INVALID_PACKET_FORMAT: The AQL packet is malformed."),
    HSA.format(3586, "HSA_STATUS_ERROR: A generic error has occurred. code: 0x1000"),
    "HW Exception by GPU node-2 (Agent handle: 0x63) says something else",
    "double free or corruption (!prev)",
    "free(): invalid pointer",
    "malloc(): unaligned tcache chunk detected",
    "corrupted size vs. prev_size",
    "munmap_chunk(): invalid pointer",
    "*** stack smashing detected ***: terminated",
    'python3: /src/llvm/IR/Use.h:99: void Use::set(): Assertion `V && "null"\' failed.',
    "python3: symbol lookup error: /opt/aiter/module.so: undefined symbol: hipGetX",
    "pure virtual method called",
    "LLVM ERROR: Cannot select: intrinsic %llvm.amdgcn.mfma",
    "rocBLAS error: Cannot read TensileLibrary.dat: No such file or directory for gfx942",
    "MIOpen(HIP): MIOpen Error: /src/hipoc.cpp:99: code object build failed",
    "F1130 05:02:30.1 480 tuner.cc:9] Check failed: n > 0 (0 vs. 0)",
    "thread '<unnamed>' panicked at src/lib.rs:12:5:",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "terminate called without an active exception",
    "Fatal Python error: Illegal instruction",
    "*** SIGABRT received at time=1796014800 on cpu 3 ***",
    "Illegal instruction (core dumped)",
)


@pytest.mark.parametrize("owner", ["", RANK])
@pytest.mark.parametrize("line", UNKNOWN_DEATHS)
def test_a_death_that_no_signature_knows_is_the_cause(line: str, owner: str) -> None:
    """It is shown with its text, during the start and while serving, before and after what it
    left behind, instead of a cause that is not in the log."""
    for lines in ([START, owner + line, DIED], [START, DIED, owner + line],
                  [START, READY, owner + line, DIED, SAMPLES["engine.dead"]]):  # fmt: skip
        cause = _cause(lines)
        assert (cause.id, cause.process) == ("unclassified", owner[1:-2])
        assert cause.evidence[0].text.startswith(line[:60])


@pytest.mark.parametrize("name", [s.id for s in load() if s.id.startswith(("rocm.", "native."))])
def test_an_abort_is_the_consequence_of_what_was_said_before(name: str) -> None:
    """Whether it comes first or last in the log, that a process gave itself up explains nothing."""
    aborts = [f"{RANK}Fatal Python error: Aborted", f"{RANK}terminate called recursively"]
    for lines in ([*aborts, SAMPLES[name], DIED], [SAMPLES[name], *aborts, DIED]):
        assert _cause([START, *lines]).id == name
    assert _cause([START, *aborts, DIED]).id == "unclassified"


def test_each_kind_of_death_is_tried() -> None:
    """No row of the table is without a line here or in the samples of the signatures."""
    lines = [*UNKNOWN_DEATHS, *SAMPLES.values(), *OTHERS]
    for literal in LITERALS:
        assert any(literal in line and weight_of(line) is not None for line in lines), literal


OTHERS = (
    "Fatal Python error: Aborted",
    "GPU core dump failed",
    "corrupted double-linked list (not small)",
)


@pytest.mark.parametrize(
    "line",
    [
        "an assertion failed somewhere",
        "the HSA_STATUS_SUCCESS of a call",
        "it said 'x' failed.",
        "a corrupted shard was fetched again",
        "[AITER] ready",
        "INFO: core dumped nothing",
    ],
)
def test_lines_that_announce_no_death_are_none(line: str) -> None:
    """Words of a kind in another form are no death."""
    assert weight_of(line) is None
    assert _explained([START, line]).verdict is Verdict.LOADING


def test_a_death_told_at_a_quiet_level_is_none() -> None:
    """Whoever logs it as a warning goes on."""
    line = f"{RANK}WARNING 11-30 05:00:01 [a.py:1] LLVM ERROR: tried another way"
    assert _explained([START, line]).verdict is Verdict.LOADING


def test_no_client_can_announce_a_death() -> None:
    """What the API process writes while it serves may be a client's text."""
    line = f"(APIServer pid=1) ERROR 11-30 05:00:01 [a.py:1] {UNKNOWN_DEATHS[9]}"
    assert _explained([START, READY, line]).verdict is Verdict.STARTED


@pytest.mark.parametrize("first", ["Current thread", "Thread"])
def test_the_frames_of_a_crash_are_those_of_its_own_thread(first: str) -> None:
    """CPython prints all threads, the innermost frame first; only one of them crashed."""
    own = [
        "Current thread 0x00007f9b6c1d6000 (most recent call first):",
        '  File "/x/attention.py", line 1210 in forward',
        '  File "/x/model.py", line 9 in run',
    ]
    other = [
        "Thread 0x00007f8d2a7fc640 (most recent call first):",
        '  File "/usr/lib/python3.12/threading.py", line 359 in wait',
    ]
    threads = [*own, "", *other] if first == "Current thread" else [*other, "", *own]
    lines = ["Fatal Python error: Illegal instruction", "", *threads, "", "Extension modules: a, b"]
    cause = _cause([START, *[RANK + line for line in lines], DIED])
    assert [frame.function for frame in cause.frames] == ["run", "forward"]
    assert cause.evidence[0].text == "Fatal Python error: Illegal instruction"


# --- exceptions without a header, and with messages of several lines


@pytest.mark.parametrize(
    ("line", "process", "text"),
    [
        (f"{RANK}ERROR 11-30 05:00:01 [a.py:1] RuntimeError: only on gfx950", W1, "only on"),
        ("[rank2]: RuntimeError: hipIpcGetMemHandle failed : invalid argument", "rank2", "hipIpc"),
        (f"{RANK}torch.AcceleratorError: HIP error: out of luck", W1, "out of luck"),
        ("vllm.x.OddException: odd", "", "vllm.x.OddException: odd"),
    ],
)
@pytest.mark.parametrize("form", ["nothing", "CRI", "stern"])
def test_an_exception_without_its_traceback_is_the_cause(
    line: str, process: str, text: str, form: str
) -> None:
    """An excerpt, or a logger that writes only the exception, tells the cause all the same."""
    lines = [FORMS[form](at, each) for at, each in enumerate([START, line, DIED])]
    cause = _cause(lines)
    assert (cause.id, cause.process) == ("unclassified", process)
    assert text in cause.evidence[0].text
    assert _explained(lines[:2]).verdict is Verdict.LOADING  # it may be overcome
    if form == "nothing":  # an excerpt without its start
        assert text in _cause([line]).evidence[0].text


def test_an_excerpt_of_a_server_that_serves_is_no_failure() -> None:
    """A rotated log has no start; what its API process says of a request stopped nothing."""
    line = "(APIServer pid=1) ERROR 11-30 05:00:01 [a.py:1] ValueError: no such tool"
    assert _explained([line]).verdict is Verdict.LOADING


def test_an_exception_with_its_traceback_goes_before_one_without() -> None:
    """What was raised says more than what was said."""
    said = f"{RANK}ERROR 11-30 05:00:01 [a.py:1] SaidError: first"
    raised = [
        "Traceback (most recent call last):",
        '  File "/x/a.py", line 1, in f',
        "    f()",
        "RaisedError: second",
    ]
    cause = _cause([START, said, *[f"(Worker_TP0 pid=480) {line}" for line in raised], DIED])
    assert cause.evidence[0].text == "RaisedError: second"


MESSAGES = {
    "pydantic": (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for ModelConfig",
        "max_model_len",
        "  Input should be a valid integer [type=int_parsing, input_value='8k', input_type=str]",
        "dtype.inner",
        "  Field required [type=missing, input_value={}, input_type=dict]",
    ),
    "torch": (
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "Search for `hipErrorLaunchFailure' in https://rocm.docs.amd.com for more information.",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
    ),
    "rccl": (
        "torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.cpp:94, internal error",
        "ncclInternalError: Internal check failed.",
        "Last error:",
        "Net plugin says: no interface eth7",
    ),
}


@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.parametrize("name", MESSAGES)
def test_the_unindented_lines_of_a_message_belong_to_it(name: str, logged: bool) -> None:
    """Key and reason are shown, of a logged and of a printed traceback; what comes then is not."""
    prefix = f"{RANK}ERROR 11-30 05:02:30 [a.py:9] " if logged else RANK
    lines = ["Traceback (most recent call last):", '  File "/x/a.py", line 1, in f', "    f()"]
    lines = [prefix + line for line in [*lines, *MESSAGES[name]]]
    after = f"{RANK}INFO 11-30 05:02:31 [b.py:1] it closes"
    found = _explained([START, *lines, after, DIED])
    assert found.cause is not None
    assert found.cause.evidence[0].text == " ".join(" ".join(MESSAGES[name]).split())


def test_what_rccl_warned_of_stands_before_its_error() -> None:
    """An error that says nothing is shown with the warning that says it, known or not."""
    warning = "node-1:480:900 [0] NCCL WARN Call to bind failed : Cannot assign address"
    error = [
        "Traceback (most recent call last):",
        '  File "/x/pynccl.py", line 400, in NCCL_CHECK',
        '    raise RuntimeError(f"NCCL error: {error_str}")',
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    ]
    lines = [START, warning, *[RANK + line for line in error], DIED]
    cause = _cause(lines)
    assert [one.text for one in cause.evidence] == [warning, error[-1]]
    assert _explained(lines[:2]).verdict is Verdict.LOADING


def test_a_rank_that_lost_another_is_no_cause() -> None:
    """What other ranks say when one has died is a consequence, wherever it stands."""
    lost = f"(Worker_TP0 pid=480) ERROR 11-30 05:02:30 [a.py:1] {SAMPLES['rccl.peer_gone']}"
    own = f"{RANK}ERROR 11-30 05:02:31 [a.py:1] OddError: the reason"
    for lines in ([lost, own], [own, lost]):
        assert "the reason" in _cause([START, *lines, DIED]).evidence[0].text


# --- remedies

# A value for each setting that a remedy tells to give, as its reader would give it.
_FLAGS = {
    "kv-cache-memory-bytes": "8000000000",
    "max-num-batched-tokens": "4096",
    "max-num-seqs": "1",
    "max-model-len": "8192",
    "tensor-parallel-size": "8",
    "gpu-memory-utilization": "0.8",
    "pipeline-parallel-size": "1",
    "distributed-timeout-seconds": "1200",
    "tokenizer-mode": "deepseek_v4",
    "tool-call-parser": "deepseek_v4",
    "enable-auto-tool-choice": "",
    "speculative-config": '{"method": "dspark", "num_speculative_tokens": 5}',
    "speculative-config.num_speculative_tokens": "5",
    "port": "8001",
}
# To be left out, or an option of the health service's.
_NOT_GIVEN = {"compilation-config", "disable-log-stats", "model", "seed"}
_VARIABLES = {
    "VLLM_ENGINE_READY_TIMEOUT_S": "9000",
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "1800",
    "VLLM_USE_V2_MODEL_RUNNER": "",  # to be unset
    "DSPARK_GRAPHS": "off",
    "DSPARK_SPECULATION": "off",
}
_KNOWN = recipe.load().vllm.vocabulary.flags


def _settings(remedy: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The flags of vLLM, of two words or with dashes before them, and the variables in a remedy."""
    remedy = remedy.replace("num_speculative_tokens", "--speculative-config.num_speculative_tokens")
    words = re.findall(
        r"(?<![\w/-])(--)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*(?:\.\w+)?)(?![\w-])", remedy
    )
    flags = [
        flag
        for dashes, flag in words
        if flag.partition(".")[0] in _KNOWN and (dashes or "-" in flag) and flag not in _NOT_GIVEN
    ]
    return tuple(flags), tuple(re.findall(r"\b(?:VLLM|DSPARK)_[A-Z0-9_]+", remedy))


REMEDIES = {
    **{s.id: s.remedy for s in load()},
    **{code: told.remedy for code, told in {**REASONS, **SMOKE_REASONS}.items()},
    "places": Path(places.__file__).read_text(),
}
NAMED = {name: _settings(text) for name, text in REMEDIES.items() if any(_settings(text))}


def test_the_settings_of_remedies_are_found() -> None:
    """The next test tries something, and no flag or variable of a remedy escapes it."""
    assert len(NAMED) >= 18
    assert {flag for flags, _ in NAMED.values() for flag in flags} <= _FLAGS.keys()
    assert {name for _, names in NAMED.values() for name in names} <= _VARIABLES.keys()


@pytest.mark.parametrize("profile", ["mi300x", "mi355x"])
@pytest.mark.parametrize("name", NAMED)
def test_what_a_remedy_names_is_a_plan(
    name: str, profile: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that the plan refuses, alone, would send its reader in a circle."""
    flags, variables = NAMED[name]
    for variable in variables:
        if _VARIABLES[variable]:
            monkeypatch.setenv(variable, _VARIABLES[variable])
    given = [part for flag in flags for part in (f"--{flag}", _FLAGS[flag]) if part]
    assert deploy_main(["plan", "--profile", profile, "--", *given]) == 0, capsys.readouterr().err


def test_no_remedy_tells_to_raise_what_grows_by_itself() -> None:
    """The plan makes the stall budget longer with the server's own bound on a step."""
    assert not [name for name, text in REMEDIES.items() if "stall_budget_s" in text]
