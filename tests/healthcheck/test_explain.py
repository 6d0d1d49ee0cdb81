"""What an explanation makes of real logs, of made-up ones, and of junk."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healthcheck import explain
from healthcheck.explain import (
    Explainer,
    Explanation,
    Finding,
    Verdict,
    explain_stream,
)
from healthcheck.explain.findings import UNCLASSIFIED, Attempt, Evidence
from healthcheck.explain.following import Tail
from healthcheck.explain.signatures import Severity, load
from healthcheck.explain.startup import Stage
from healthcheck.explain.text import render
from tests.support.log_samples import SAMPLES, VALUES_IN_REMEDY

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).with_name("data")
SIGNATURES = {signature.id: signature for signature in load()}
CAUSES = [
    name
    for name, signature in SIGNATURES.items()
    if signature.severity in (Severity.FATAL, Severity.RETRY, Severity.TIMEOUT, Severity.EXTERNAL)
]
WRAPPERS = [name for name, one in SIGNATURES.items() if one.severity is Severity.WRAPPER]

START = "(APIServer pid=1) INFO 11-29 13:00:00 [api_utils.py:273] non-default args: {'port': 8000}"
READY = "(APIServer pid=1) INFO:     Application startup complete."
WRAPPER = SAMPLES["engine.core_init_failed"]
LOGGED = "ERROR 11-29 13:00:10 [multiproc_executor.py:912] "


def _by_line(lines: Iterable[str]) -> Explanation:
    explainer = Explainer()
    for line in lines:
        explainer.feed(line)
    return explainer.result()


def _by_block(lines: Iterable[str]) -> Explanation:
    return explain_stream(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))


def _cause(explanation: Explanation) -> Finding:
    assert explanation.cause is not None, explanation.headline
    return explanation.cause


def _stages(explanation: Explanation) -> tuple[Stage, ...]:
    assert explanation.startup is not None, explanation.headline
    return explanation.startup.stages


def _trace(prefix: str, error: str, *, function: str = "load_model") -> list[str]:
    body = [
        "Traceback (most recent call last):",
        '  File "vllm/v1/worker/gpu_worker.py", line 442, in outer',
        "    self.model_runner.load_model()",
        f'  File "vllm/v1/worker/gpu/model_runner.py", line 322, in {function}',
        "    self.speculator.load_model(self.model)",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        error,
    ]
    return [prefix + line for line in body]


# --- the real logs


def test_the_missing_attribute_is_named_and_not_its_wrapper() -> None:
    """On the real log of an unpatched start the cause is the attribute, from the worker."""
    with (DATA / "log-missing-d2t.log").open("rb") as stream:
        found = explain_stream(stream)
    cause = _cause(found)
    assert found.verdict is Verdict.FAILED
    assert (cause.id, cause.process, cause.line_number) == (
        "dspark.missing_d2t_attr",
        "Worker pid=17373",
        74,
    )
    assert cause.frames[-2].function == "load_draft_model"
    assert cause.frames[-2].code.startswith("if self.draft_logits is not None")
    assert [one.id for one in found.wrappers] == [
        "worker.start_failed",
        "engine.core_start_failed",
        "worker.init_failed",
        "engine.core_init_failed",
    ]
    assert found.exceptions == ()
    assert [stage.name for stage in _stages(found)] == ["listen", "config", "weights", "draft"]


@pytest.mark.parametrize("name", ["log-healthy.log", "log-nan-weights.log", "log-sigstop.log"])
def test_a_start_that_came_through_is_started(name: str) -> None:
    """Real starts that came through are so named, with each stage and its seconds."""
    with (DATA / name).open("rb") as stream:
        found = explain_stream(stream)
    assert (found.verdict, found.cause, found.stopped) == (Verdict.STARTED, None, True)
    stages = {stage.name: stage for stage in _stages(found)}
    assert list(stages) == ["listen", "config", "weights", "draft", "compile", "ready"]
    assert stages["weights"].progress_percent == 100
    assert stages["draft"].progress_percent == 100
    assert all(stage.done for stage in stages.values())
    times = [stage.began_s for stage in stages.values()]
    assert times == sorted(times, key=lambda one: one or 0.0)
    assert (stages["ready"].began_s or 0.0) >= 14


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("log-*.log")))
def test_a_log_cut_off_anywhere_is_explained(name: str) -> None:
    """Whatever prefix of a real log is there, the answer is an explanation that json can write."""
    lines = (DATA / name).read_text().splitlines()
    explainer = Explainer()
    for line in lines:
        explainer.feed(line)
        found = explainer.result()
        json.dumps(found.as_dict())
    assert found.lines == len(lines)


@pytest.mark.parametrize("name", sorted(path.name for path in DATA.glob("log-*.log")))
def test_blocks_say_the_same_as_lines(name: str) -> None:
    """Passing over lines that say nothing changes nothing in the explanation of a real log."""
    data = (DATA / name).read_bytes()
    explainer = Explainer()
    for line in data.decode().removesuffix("\n").split("\n"):
        explainer.feed(line)
    assert explain_stream(io.BytesIO(data)) == explainer.result()


QUIET = [f"(APIServer pid=1) INFO 11-29 13:00:01 [x.py:1] nothing {n}" for n in range(30)]
LATER = "(APIServer pid=1) INFO 11-29 13:06:00 [x.py:1] nothing"
WEIGHTS = "(Worker_TP0 pid=5) INFO 11-29 13:05:10 [x.py:1] Loading weights took 7.00 seconds"
ODD = "(APIServer pid=1) ERROR 11-29 13:05:20 [x.py:1] odd"


@pytest.mark.parametrize(
    "blocks",
    [
        [[START, *QUIET, LATER, SAMPLES["mem.vram_busy"]]],
        [[START, *QUIET, WEIGHTS, *QUIET, LATER.replace("13:06", "13:09")]],
        [[START, ODD, *QUIET], [*QUIET, WEIGHTS, *QUIET]],
        [[START, *QUIET, READY, ODD], [*QUIET, WEIGHTS, ODD.replace("odd", "odder"), LATER]],
        [[START, *QUIET, READY, ODD], [*QUIET, START, *QUIET, WEIGHTS, ODD, LATER]],
        [[START, *QUIET, READY], [*QUIET, ODD, *QUIET], [SAMPLES["engine.dead"], *QUIET]],
        [[START, *QUIET, ODD], [*QUIET, READY], [*QUIET, ODD, LATER]],
        [[START, *QUIET], ["", *QUIET, "", SAMPLES["mem.vram_busy"]]],
    ],
    ids=[
        "a time that only a line passed over has",
        "a last time that only a line passed over has",
        "an error and then a stage",
        "an error while serving",
        "another start in a later block",
        "a first error in a later block",
        "an error of the start and one of serving",
        "a block that begins with an empty line",
    ],
)
def test_what_comes_in_several_blocks_is_explained_as_one(blocks: list[list[str]]) -> None:
    """What is passed over depends on what came before, and takes nothing from what is said."""
    explainer = Explainer()
    for block in blocks:
        explainer.feed_block("".join(f"{line}\n" for line in block).encode())
    assert explainer.result() == _by_line([line for block in blocks for line in block])


def test_several_lines_may_be_fed_at_once() -> None:
    """A text of more than one line is taken line by line, its last newline being no line."""
    explainer = Explainer()
    explainer.feed(f"{START}\n{SAMPLES['mem.vram_busy']}\n")
    found = explainer.result()
    assert (_cause(found).id, _cause(found).line_number, found.lines) == ("mem.vram_busy", 2, 2)


def test_lines_are_counted_whether_the_last_has_ended_or_not() -> None:
    """The number of lines is that of the file, with what no newline ends."""
    for text, lines in (("a", 1), ("a\n", 1), ("a\nb", 2), ("a\n\n", 2), ("\n", 1), ("", 0)):
        explainer = Explainer()
        explainer.feed_block(text.encode())
        assert explainer.result().lines == lines


# --- each signature

WRAPS = {
    "bare": "{}",
    "worker": "(Worker_TP3 pid=123) {}",
    "logged": f"(Worker_TP3_EP3 pid=123) {LOGGED}{{}}",
    "engine": f"(EngineCore_DP0 pid=9) {LOGGED}{{}}",
    "compose": f"server-1  | (Worker_TP3 pid=123) {LOGGED}{{}}",
    "kubernetes": "2026-08-31T17:43:36.650052872Z stderr F (Worker_TP4 pid=955) {}",
    "compose with times": "vllm  | 2026-08-31T17:43:36.650052872Z (Worker_TP4 pid=955) {}",
    "kubectl": "[pod/vllm-0/server] 2026-08-31T17:43:36Z (Worker_TP4 pid=955) {}",
    "colours": "\x1b[36m(Worker_TP3 pid=123)\x1b[0m \x1b[31mERROR\x1b[0m \x1b[90m11-29 13:00:10\x1b[0m \x1b[90m[a.py:1]\x1b[0m {}",
    "carriage return": "{}\r",
    "after a bar": "Capturing CUDA graphs: 88%|####| 45/51 [00:05<00:00,  9.32it/s](Worker_TP0 pid=98) {}",
    "bar drawn over": "(Worker_TP0 pid=98) Loading: 1%\rLoading: 2%\r{}",
}


@pytest.mark.parametrize(
    ("name", "wrap"),
    [*((name, "logged") for name in SAMPLES), *(("rocm.no_gpu", wrap) for wrap in WRAPS)],
)
def test_each_signature_is_seen_through_each_prefix(name: str, wrap: str) -> None:
    """Each known line is known, and one of them behind every prefix, before and after a wrapper, by
    line and by block."""
    line = WRAPS[wrap].format(SAMPLES[name])
    for lines in ([START, line, WRAPPER], [START, WRAPPER, line]):
        for found in (_by_line(lines), _by_block(lines)):
            everything = {
                one.id for one in (*found.findings, *found.wrappers, *found.warnings, *found.waits)
            }
            benign = SIGNATURES[name].severity is Severity.BENIGN
            assert (name in everything) != benign
            if name in CAUSES:
                assert _cause(found).id == name
            else:
                assert found.verdict is Verdict.CAUSE_NOT_IN_LOG


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_found_whatever_ranks_write_in_whatever_order(name: str) -> None:
    """Eight ranks that fail alike, their wrappers and ordinary lines, shuffled: one cause, and
    every rank that told of it is named."""
    prefixes = [f"(Worker_TP{rank}_EP{rank} pid={700 + rank}) " for rank in range(8)]
    lines = [prefix + LOGGED + SAMPLES[name] for prefix in prefixes]
    lines += [prefix + LOGGED + SAMPLES["worker.start_failed"] for prefix in prefixes]
    lines += [
        prefix + "INFO 11-29 13:00:10 [m.py:1] Starting to load model x" for prefix in prefixes
    ]
    lines += [f"(EngineCore_DP0 pid=9) {LOGGED}{SAMPLES['engine.core_start_failed']}", WRAPPER]
    random.Random(name).shuffle(lines)
    for found in (_by_line([START, *lines]), _by_block([START, *lines])):
        cause = _cause(found)
        assert (cause.id, cause.count) == (name, 8)
        assert sorted(cause.processes) == [prefix[1:-2] for prefix in prefixes]
        assert {one.id for one in found.findings} == {name}


@pytest.mark.parametrize(("name", "values"), VALUES_IN_REMEDY.items())
def test_values_of_the_line_go_into_the_remedy(name: str, values: tuple[str, ...]) -> None:
    """K, sizes, paths, arch and the like are told back in what to do."""
    found = _by_line([START, SAMPLES[name]])
    (finding,) = (*found.findings, *found.wrappers, *found.warnings, *found.waits)
    assert all(value in finding.remedy for value in values), finding.remedy


def test_a_value_that_the_line_does_not_give_is_said_to_be_missing() -> None:
    """A remedy never shows an empty place."""
    cause = _cause(_by_line(["RuntimeError: HIP error: invalid device function"]))
    assert "arch named: not said" in cause.remedy


# --- order and interleaving


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_wrapper_alone_is_not_taken_for_a_cause(wrapper: str) -> None:
    """With consequences only, the answer is that the cause is not in this log."""
    prefix, line = f"(EngineCore pid=2) {LOGGED}", SAMPLES[wrapper]
    raised = re.match(r"\w+: ", line)
    found = _by_block([START, *(_trace(prefix, line) if raised else [prefix + line])])
    assert (found.verdict, found.cause) == (Verdict.CAUSE_NOT_IN_LOG, None)
    assert "cause not in this log" in found.headline
    assert wrapper in found.headline


def test_traces_of_ranks_that_interleave_are_put_together() -> None:
    """Each rank's frames stay its own however the lines of eight ranks are mixed."""
    source = random.Random(7)
    traces = [
        _trace(
            f"(Worker_TP{rank} pid={rank}) {LOGGED}", f"SomeError: rank {rank}", function=f"f{rank}"
        )
        for rank in range(8)
    ]
    mixed: list[str] = []
    while any(traces):
        mixed.append(source.choice([trace for trace in traces if trace]).pop(0))
    found = _by_block([START, *mixed, WRAPPER])
    assert {one.frames[-1].function: one.message for one in found.exceptions} == {
        f"f{rank}": f"rank {rank}" for rank in range(8)
    }
    assert _cause(found).id == UNCLASSIFIED


def test_the_first_real_exception_is_given_with_its_last_frames() -> None:
    """What no signature knows is the first exception that is no wrapper, with rank and frames."""
    lines = [
        START,
        *_trace(f"(EngineCore pid=2) {LOGGED}", SAMPLES["worker.init_failed"]),
        *_trace(f"(Worker_TP5 pid=8) {LOGGED}", "foo.bar.OddError: no such thing: 7"),
        *_trace(f"(Worker_TP6 pid=9) {LOGGED}", "foo.bar.OtherError: later"),
        *_trace("(APIServer pid=1) ", WRAPPER),
    ]
    found = _by_block(lines)
    cause = _cause(found)
    assert (cause.id, cause.rank) == ("unclassified", "TP5")
    assert cause.evidence[0].text == "foo.bar.OddError: no such thing: 7"
    assert cause.frames[-1].code == "self.speculator.load_model(self.model)"
    assert [one.kind for one in found.exceptions] == ["foo.bar.OddError", "foo.bar.OtherError"]


def test_all_that_is_known_of_an_unknown_exception_is_told() -> None:
    """Process, rank, line, time, text and frames, and where to look where no signature does."""
    explainer = Explainer()
    explainer.feed(START, 100.0)
    for line in _trace(f"(Worker_TP5 pid=8) {LOGGED}", "foo.OddError: no such thing: 7"):
        explainer.feed(line, 107.5)
    cause = _cause(explainer.result())
    assert cause == Finding(
        id="unclassified",
        severity=Severity.FATAL,
        phase="any",
        process="Worker_TP5 pid=8",
        rank="TP5",
        line_number=2,
        seconds=7.5,
        remedy="no signature knows this exception: read its last frames, and search for its text",
        source="this log",
        processes=("Worker_TP5 pid=8",),
        evidence=(Evidence(2, "foo.OddError: no such thing: 7"),),
        frames=cause.frames,
    )
    assert [frame.function for frame in cause.frames] == ["outer", "load_model"]


def test_all_that_is_known_of_a_known_cause_is_told() -> None:
    """What the signature says, where it was seen first, and every rank that said it."""
    explainer = Explainer()
    explainer.feed(START, 100.0)
    for at, rank in ((103.5, 2), (104.0, 1), (105.0, 2)):
        explainer.feed(
            f"(Worker_TP{rank} pid=9{rank}) {LOGGED}{SAMPLES['dspark.k_below_block']}", at
        )
    signature = SIGNATURES["dspark.k_below_block"]
    text = f"{SAMPLES['dspark.k_below_block']}"
    cause = _cause(explainer.result())
    assert cause == Finding(
        id="dspark.k_below_block",
        severity=signature.severity,
        phase=signature.phase,
        process="Worker_TP2 pid=92",
        rank="TP2",
        line_number=2,
        seconds=3.5,
        remedy=cause.remedy,
        source=signature.source,
        count=3,
        processes=("Worker_TP2 pid=92", "Worker_TP1 pid=91"),
        evidence=(Evidence(2, text), Evidence(3, text)),
        values=cause.values,
    )
    assert set(cause.values.values()) == {"4", "5"}


def test_what_many_ranks_say_is_told_by_some_of_them() -> None:
    """Sixteen processes and three lines are enough to know it by; all are counted."""
    lines = [f"(Worker_TP{rank} pid={rank}) {SAMPLES['mem.hip_oom']}" for rank in range(20)]
    cause = _cause(_by_line([START, *lines, *lines]))
    assert cause.processes == tuple(f"Worker_TP{rank} pid={rank}" for rank in range(16))
    assert ([one.line_number for one in cause.evidence], cause.count) == ([2, 3, 4], 40)


def test_what_is_known_of_a_long_line_is_shown() -> None:
    """The evidence begins where it is known, if that is far behind the line's beginning."""
    line = f"(Worker_TP0 pid=5) {'x ' * 500}{SAMPLES['rocm.no_gpu'].removeprefix('RuntimeError: ')}"
    (evidence,) = _cause(_by_line([START, line])).evidence
    assert evidence.text.startswith("No HIP GPUs")


def test_the_first_error_line_that_nothing_knows_is_told() -> None:
    """Of the start while it lasts, and of serving from then on; what is known is no such line."""
    known = f"(Worker_TP0 pid=5) {LOGGED}{SAMPLES['mem.vram_busy']}"
    assert _by_line([START, known]).first_error is None
    first = _by_line([START, known, ODD, ODD.replace("odd", "odder")]).first_error
    assert first is not None and (first.line_number, first.text) == (3, "odd")
    assert _by_line([START, ODD, READY]).first_error is None
    serving = [READY, ODD.replace("odd", "odder"), ODD.replace("odd", "oddest")]
    later = _by_line([START, ODD, *serving]).first_error
    assert later is not None and (later.line_number, later.text) == (4, "odder")


def test_the_first_exception_of_a_start_is_its_cause_whoever_raised_it() -> None:
    """Only while serving does an exception of the API process stand behind the engine's."""
    lines = [
        *_trace("(APIServer pid=1) ", "OddError: first"),
        "(APIServer pid=1) INFO it goes on",
        *_trace("(EngineCore pid=2) ", "OddError: second"),
        WRAPPER,
    ]
    assert _cause(_by_line([START, *lines])).process == "APIServer pid=1"


def test_a_line_drawn_over_a_bar_is_its_own_process_at_its_time() -> None:
    """Without a process of its own it is the bar's."""
    oom = SAMPLES["mem.hip_oom"]
    for drawn, process in ((f"(Worker_TP1 pid=9) {oom}", "Worker_TP1 pid=9"), (oom, "W pid=5")):
        explainer = Explainer()
        explainer.feed(START, 1.0)
        explainer.feed(f"(W pid=5) Loading: 1%\r{drawn}\n", 8.0)
        cause = _cause(explainer.result())
        assert (cause.process, cause.seconds, cause.line_number) == (process, 7.0, 2)
        assert explainer.result().lines == 2


def test_an_exception_without_a_message_is_its_name() -> None:
    """Nothing is made up behind the name."""
    found = _by_line([START, *_trace("(Worker_TP0 pid=5) ", "OddError")])
    assert _cause(found).evidence[0].text == "OddError"
    cut = _cause(_by_line([START, *_trace("(Worker_TP0 pid=5) ", "OddError: x")[:-1]]))
    assert cut.evidence[0].text == "a traceback that is cut off"
    assert cut.values == {"cut_off": "yes"}


def test_ranks_that_fail_in_one_place_are_one_exception() -> None:
    """The same exception out of the same last frame is one, whatever called there; out of another
    frame it is another."""

    def raised(rank: int, caller: str, function: str = "load_model") -> list[str]:
        prefix = f"(Worker_TP{rank} pid={rank}) "
        lines = _trace(prefix, "OddError: x", function=function)
        between = [f'{prefix}  File "vllm/a.py", line 7, in {caller}', f"{prefix}    {caller}()"]
        return [*lines[:3], *between, *lines[3:]]

    lines = [START, *raised(1, "one"), *raised(2, "two"), *raised(3, "one", "other")]
    closed = [f"(Worker_TP{rank} pid={rank}) INFO it goes on" for rank in (1, 2, 3)]
    found = _by_line([*lines, *closed])
    assert [one.frames[-1].function for one in found.exceptions] == ["load_model", "other"]


def test_frames_are_those_of_the_process_that_is_named() -> None:
    """A cause that one rank only says and another raises has no frames; its own come first."""
    oom = SAMPLES["mem.hip_oom"]
    said = f"(Worker_TP0 pid=5) {LOGGED}{oom}"
    raised = _trace("(Worker_TP1 pid=6) ", oom)
    assert _cause(_by_line([START, said, *raised, "(Worker_TP1 pid=6) INFO x"])).frames == ()
    first = _trace("(Worker_TP0 pid=5) ", oom, function="first")
    second = _trace("(Worker_TP0 pid=5) ", oom, function="second")
    ended = "(Worker_TP0 pid=5) INFO x"
    cause = _cause(_by_line([START, *first, ended, *second, ended]))
    assert cause.frames[-1].function == "first"


def test_a_known_cause_goes_before_an_unknown_exception() -> None:
    """A signature says more than an exception, wherever the two stand."""
    lines = [
        START,
        *_trace("(Worker_TP0 pid=5) ", "OddError: x"),
        *_trace("(Worker_TP1 pid=6) ", SAMPLES["mem.hip_oom"]),
    ]
    found = _by_line(lines)
    assert _cause(found).id == "mem.hip_oom"
    assert _cause(found).frames[-1].function == "load_model"
    assert [one.kind for one in found.exceptions] == ["OddError"]


def test_an_exception_of_several_lines_is_one() -> None:
    """A signature in the second line of a validation error classifies that error."""
    lines = [
        START,
        *_trace("(APIServer pid=1) ", "pydantic_core.ValidationError: 1 validation error for X"),
        "(APIServer pid=1)   Value error, " + SAMPLES["dspark.k_below_block"],
        "(APIServer pid=1)     For further information visit a page",
    ]
    found = _by_block(lines)
    assert (_cause(found).id, found.exceptions) == ("dspark.k_below_block", ())
    unknown = _by_line([*lines[:-2], "(APIServer pid=1)   Value error, odd flag", START])
    assert unknown.earlier_attempts[0].cause == "unclassified"


def test_source_code_quoted_in_a_frame_is_no_evidence() -> None:
    """A frame may quote the very line that raises another error; only what was raised counts."""
    lines = _trace("(Worker_TP0 pid=5) ", "OddError: x")
    lines[4] = '(Worker_TP0 pid=5)     raise RuntimeError("No HIP GPUs are available")'
    assert _cause(_by_block([START, *lines, WRAPPER])).id == "unclassified"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("Fatal Python error: Segmentation fault", "native.segfault"),
        ("terminate called after throwing an instance of 'c10::Error'", "unclassified"),
    ],
)
def test_a_native_crash_is_an_exception_too(line: str, name: str) -> None:
    """What dies outside Python has no traceback, and is named all the same."""
    cause = _cause(_by_block([START, f"(Worker_TP2 pid=4) {line}", WRAPPER]))
    assert (cause.id, cause.rank) == (name, "TP2")


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "server.py", line 3, in serve
  |     group.wait()
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "task.py", line 4, in task
    |     raise RuntimeError("No available memory for the cache blocks")
    | {}
    +------------------------------------"""


@pytest.mark.parametrize("prefix", ["", "(APIServer pid=1) ", f"(EngineCore pid=2) {LOGGED}"])
@pytest.mark.parametrize("error", ["OddError: x", SAMPLES["rocm.no_gpu"]])
def test_an_exception_in_a_group_is_the_cause(prefix: str, error: str) -> None:
    """Of an exception group, the part counts and not the group, known or not."""
    lines = [prefix + line for line in GROUP.format(error).splitlines()]
    for found in (_by_line([START, *lines, WRAPPER]), _by_block([START, *lines, WRAPPER])):
        cause = _cause(found)
        assert cause.evidence[0].text.endswith(error)
        assert [frame.function for frame in cause.frames] == ["task"]
        assert len(found.findings) + len(found.exceptions) == 1


@pytest.mark.parametrize("error", ["OddError: x", SAMPLES["rocm.no_gpu"]])
@pytest.mark.parametrize(
    ("prefix", "process"),
    [
        ("    ", ""),
        ("(Worker_TP1 pid=3)     ", "Worker_TP1 pid=3"),
        ("[rank3]: ", "rank3"),
        ("(Worker_TP1 pid=3) [rank1]: ", "Worker_TP1 pid=3"),
        ("Nov 29 13:00:00 host-1 vllm[77]: (Worker_TP1 pid=3) ", "Worker_TP1 pid=3"),
        ("Nov  9 13:00:00 host-1 vllm[77]: ", ""),
    ],
)
def test_a_trace_behind_a_margin_is_read(prefix: str, process: str, error: str) -> None:
    """A trace that is indented as a whole, or printed by torch or syslog, is a trace."""
    lines = [START, *_trace(prefix, error), WRAPPER]
    for found in (_by_line(lines), _by_block(lines)):
        cause = _cause(found)
        assert (cause.process, cause.evidence[0].text.endswith(error)) == (process, True)
        assert cause.frames[-1].function == "load_model"


def test_a_line_of_a_logger_is_no_exception() -> None:
    """A level and a colon within somebody's trace are not the exception's name."""
    lines = _trace("", "OddError: x")
    lines.insert(3, "INFO:     Waiting for application startup.")
    assert [one.kind for one in _by_block([START, *lines, WRAPPER]).exceptions] == ["OddError"]


@pytest.mark.parametrize(
    ("name", "traced", "level"),
    [
        *((name, True, "WARNING") for name in CAUSES),
        *(
            ("mem.hip_oom", traced, level)
            for traced in (True, False)
            for level in ("INFO", "DEBUG")
        ),
    ],
)
def test_a_known_fault_below_error_is_a_warning(name: str, traced: bool, level: str) -> None:
    """Who logs a known fault below ERROR goes on without, so another cause goes before it; it is
    the cause only of a failure that nothing else explains."""
    prefix = f"(Worker_TP0 pid=5) {level} 11-29 13:00:10 [a.py:1] "
    quiet = _trace(prefix, SAMPLES[name]) if traced else [prefix + SAMPLES[name]]
    went_on = _by_block([START, *quiet])
    assert (went_on.verdict, went_on.findings) == (Verdict.LOADING, ())
    assert [one.id for one in went_on.warnings] == [name]
    other = _by_block([START, *quiet, *_trace("(Worker_TP1 pid=6) ", "OddError: x"), WRAPPER])
    assert _cause(other).id == UNCLASSIFIED
    loud = _by_block([START, *quiet, SAMPLES[name]])
    assert (_cause(loud).line_number, loud.warnings) == (len(quiet) + 2, ())
    nothing_else = _by_block([START, *quiet, WRAPPER])
    assert (_cause(nothing_else).id, nothing_else.warnings) == (name, ())


@pytest.mark.parametrize("level", ["WARNING", "INFO", "DEBUG"])
def test_a_trace_logged_as_a_warning_is_no_cause(level: str) -> None:
    """Whoever logs a traceback below ERROR goes on without what failed."""
    lines = _trace(f"(Worker_TP0 pid=5) {level} 11-29 13:00:10 [a.py:1] ", "ImportError: no x")
    found = _by_block([START, *lines, WRAPPER])
    assert (found.verdict, found.exceptions) == (Verdict.CAUSE_NOT_IN_LOG, ())


def test_an_ignored_exception_is_no_cause() -> None:
    """Python goes on after an exception in a destructor."""
    head = "Exception ignored in: <function X.__del__>"
    found = _by_block([START, *["filler"] * 30, head, *_trace("", "OddError: x"), WRAPPER])
    assert found.verdict is Verdict.CAUSE_NOT_IN_LOG
    known = _by_block([START, head, *_trace("", SAMPLES["dspark.missing_hook"])])
    assert (known.verdict, len(known.warnings)) == (Verdict.LOADING, 1)


def test_a_queue_that_was_cancelled_is_no_cause() -> None:
    """When a worker dies the engine's wait for it is cancelled, which explains nothing."""
    engine = f"(EngineCore pid=2) {LOGGED}"
    lines = [engine + SAMPLES["worker.died"], *_trace(engine, SAMPLES["engine.queue_cancelled"])]
    found = _by_block([START, *lines, WRAPPER])
    assert (found.verdict, found.exceptions) == (Verdict.CAUSE_NOT_IN_LOG, ())
    assert found.wrappers[0].id == "worker.died"


@pytest.mark.parametrize(
    "line",
    [
        f'(APIServer pid=1) INFO:     10.0.0.1:5 - "GET /{SAMPLES["rocm.no_gpu"]} HTTP/1.1" 404',
        f"(APIServer pid=1) INFO 11-29 13:00:10 [request_logger.py:64] Received request x: params: {SAMPLES['rocm.no_gpu']}",
        f"(APIServer pid=1) DEBUG 11-29 13:00:10 [request_logger.py:54] Request x details: prompt: '{SAMPLES['engine.dead']}'",
        f"(APIServer pid=1) INFO 11-29 13:00:10 [request_logger.py:92] Generated response x: output: '{SAMPLES['engine.dead']}'",
        f"(APIServer pid=1) ERROR 11-29 13:00:10 [a.py:1] ValueError: no tool '{SAMPLES['rocm.no_gpu']}'",
        f"(APIServer pid=1) ERROR 11-29 13:00:10 [a.py:1] ValueError: no tool '{SAMPLES['numerics.nan_json']}'",
        f"(APIServer pid=1) ERROR 11-29 13:00:10 [a.py:1] ValueError: no tool '{SAMPLES['engine.dead']}'",
        f"(APIServer pid=1) ERROR 11-29 13:00:10 [a.py:1] {SAMPLES['ckpt.weight_key']}",
    ],
)
def test_clients_cannot_name_a_cause(line: str) -> None:
    """Text that a client chose, in an access line or an echoed request, is not looked at."""
    assert _by_block([START, READY, line]).verdict is Verdict.STARTED


# --- ready and after


@pytest.mark.parametrize("name", CAUSES)
def test_ready_after_a_fault_is_started_with_a_warning(name: str) -> None:
    """A fault that the start overcame is kept as a warning."""
    found = _by_block([START, SAMPLES[name], READY])
    assert (found.verdict, found.cause) == (Verdict.STARTED, None)
    assert [one.id for one in found.warnings] == [name]


def test_serving_and_routes_are_ready_too() -> None:
    """The two lines together stand for ready where the last one is missing."""
    line = "(APIServer pid=1) INFO 11-29 13:00:09 [api_server.py:682] Starting vLLM server on http://127.0.0.1:8000"
    assert _by_block([START, line]).verdict is Verdict.LOADING
    routes = "(APIServer pid=1) INFO 11-29 13:00:09 [launcher.py:37] Available routes are:"
    assert _by_block([START, line, routes]).verdict is Verdict.STARTED


def test_an_exception_that_ended_the_engine_is_its_cause() -> None:
    """What the engine raised while serving is kept when its process goes on to say more."""
    lines = _trace(f"(EngineCore pid=2) {LOGGED}", "OddError: broken")
    after = "(EngineCore pid=2) INFO 11-29 13:00:11 [core.py:9] closing"
    found = _by_line([START, READY, *lines, after, SAMPLES["engine.dead"]])
    assert (_cause(found).id, _cause(found).process) == ("unclassified", "EngineCore pid=2")


def test_a_request_that_fails_is_no_failure_of_the_server() -> None:
    """An exception in the API process is some request's, unless the engine goes with it."""
    request = _trace("(APIServer pid=1) ", "OddError: bad request")
    engine = _trace(f"(EngineCore pid=2) {LOGGED}", "AssertionError: broken")
    assert _by_block([START, READY, *request]).verdict is Verdict.STARTED
    died = _by_block([START, READY, *request * 50, *engine, SAMPLES["engine.dead"]])
    assert _cause(died).process == "EngineCore pid=2"


def test_code_quoted_in_the_thousandth_trace_is_no_evidence() -> None:
    """Traces beyond those that are taken apart still quote code that nobody ran."""
    lines = _trace(f"(APIServer pid=1) {LOGGED}", "ValueError: bad request")
    lines[4] = f"(APIServer pid=1) {LOGGED}    raise EngineDeadError()"
    for found in (
        _by_line([START, READY, *lines * 1_000]),
        _by_block([START, READY, *lines * 1_000]),
    ):
        assert (found.verdict, found.findings, found.wrappers) == (Verdict.STARTED, (), ())
    start = [line.replace("APIServer pid=1", "Worker_TP0 pid=5") for line in lines] * 1_000
    assert _by_block([START, *start]).wrappers == ()


def test_a_shutdown_after_the_engine_died_is_its_consequence() -> None:
    """vLLM shuts its API down when the engine is gone, which is not being stopped."""
    stop = "(APIServer pid=1) INFO 11-29 13:03:06 [launcher.py:112] [shutdown] API server: shutdown triggered"
    died = (
        f"(APIServer pid=1) WARNING 11-29 13:03:05 [core_client.py:725] {SAMPLES['engine.exited']}"
    )
    found = _by_block([START, READY, died, stop])
    assert (found.verdict, found.stopped) == (Verdict.CAUSE_NOT_IN_LOG, False)
    assert "killed from outside" in found.wrappers[0].remedy


STOP = "(APIServer pid=1) INFO 11-29 13:03:06 [launcher.py:112] [shutdown] API server: shutdown triggered"


@pytest.mark.parametrize(
    "lines",
    [
        [SAMPLES["mem.hip_oom"], READY],
        [READY, SAMPLES["jit.during_inference"]],
        [READY, f"(EngineCore pid=2) WARNING 11-29 13:00:10 [x.py:9] {SAMPLES['mem.hip_oom']}"],
    ],
    ids=["overcome before ready", "a warning", "logged as a warning"],
)
def test_what_the_server_goes_on_after_does_not_make_a_stop_a_failure(lines: list[str]) -> None:
    """Only an engine that has failed while serving makes the shutdown its consequence."""
    found = _by_line([START, *lines, STOP, SAMPLES["worker.died"]])
    assert (found.verdict, found.stopped) == (Verdict.STARTED, True)


@pytest.mark.parametrize(
    ("lines", "headline"),
    [
        ([], "the log is empty"),
        (["junk"], "no fault so far; the start has reached: nothing"),
        ([START], "no fault so far; the start has reached: listen"),
        ([START, READY], "the server started"),
        ([START, READY, STOP], "the server started and was stopped later"),
        (
            [START, SAMPLES["worker.start_failed"], WRAPPER],
            "cause not in this log: only its consequences are "
            "(worker.start_failed, engine.core_init_failed)",
        ),
        (
            [START, f"(Worker_TP0 pid=5) {SAMPLES['rocm.no_gpu']}"],
            f"rocm.no_gpu in Worker_TP0 pid=5, at listen: {SAMPLES['rocm.no_gpu']}",
        ),
        ([SAMPLES["rocm.no_gpu"]], f"rocm.no_gpu, at nothing: {SAMPLES['rocm.no_gpu']}"),
        (
            [START, READY, SAMPLES["rocm.mem_fault"]],
            f"rocm.mem_fault, while serving: {SAMPLES['rocm.mem_fault']}",
        ),
    ],
)
def test_the_headline_says_it_in_one_line(lines: list[str], headline: str) -> None:
    """What happened, in whom, how far the start had come, and the line that says so."""
    assert _by_line(lines).headline == headline


def test_a_trace_that_is_cut_off_is_a_cause_only_where_nothing_is_named() -> None:
    """An exception with its name says more, though it comes later."""
    cut = _trace("(Worker_TP0 pid=5) ", "OddError: x")[:-1]
    named = [*_trace("(Worker_TP1 pid=6) ", "OddError: named"), "(Worker_TP1 pid=6) INFO on"]
    assert _cause(_by_line([START, *cut, *named, WRAPPER])).process == "Worker_TP1 pid=6"


def test_the_clock_of_another_start_begins_there() -> None:
    """Stages of the second start count from its own first line."""
    explainer = _timed(
        (0.0, START), (5.0, SAMPLES["mem.vram_busy"]), (100.0, START), (103.0, READY)
    )
    found = explainer.result()
    assert [one.cause for one in found.earlier_attempts] == ["mem.vram_busy"]
    assert {stage.name: stage.began_s for stage in _stages(found)} == {"listen": 0.0, "ready": 3.0}
    assert _by_line([START, START]).earlier_attempts == (Attempt(Verdict.LOADING, "", 1),)


def test_the_last_start_of_a_log_counts() -> None:
    """A restarting container leaves several starts in one log; earlier ones are listed."""
    failed = [START, SAMPLES["mem.vram_busy"], WRAPPER]
    found = _by_block([*failed, *failed, START, READY])
    assert found.verdict is Verdict.STARTED
    assert [(one.verdict, one.cause, one.last_line) for one in found.earlier_attempts] == [
        (Verdict.FAILED, "mem.vram_busy", 3),
        (Verdict.FAILED, "mem.vram_busy", 6),
    ]
    again = _by_block([START, READY, START, SAMPLES["mem.kv_none"]])
    assert _cause(again).id == "mem.kv_none"


# --- waits

BATON = SAMPLES["aiter.baton_wait"]
SHM = SAMPLES["shm.bcast_wait"]


def _timed(*lines: tuple[float, str]) -> Explainer:
    explainer = Explainer()
    for at, line in lines:
        explainer.feed(line, at)
    return explainer


@pytest.mark.parametrize(("later", "verdict"), [(899.0, Verdict.LOADING), (901.0, Verdict.FAILED)])
def test_a_wait_is_fatal_only_after_its_budget(later: float, verdict: Verdict) -> None:
    """A lock is waited for in every first start; only beyond its budget is it a cause."""
    explainer = _timed((100.0, START), (110.0, f"(Worker_TP2 pid=4) {BATON}"))
    explainer.feed(f"(Worker_TP3 pid=5) {BATON}", 110.0 + later)
    found = explainer.result()
    assert found.verdict is verdict
    if found.cause:
        assert (found.cause.id, found.cause.rank, found.cause.state) == (
            "aiter.baton_wait",
            "TP2",
            "overdue",
        )
        assert "/cache/aiter/build/lock_module_moe_sorting" in found.cause.remedy


def test_all_that_is_known_of_a_wait_is_told() -> None:
    """Who waits, since which line and when, for what, for how long, and what to do."""
    explainer = _timed((0.0, START), (10.0, f"(Worker_TP3 pid=7) {BATON}"), (70.0, READY[:18]))
    (wait,) = explainer.result().waits
    signature = SIGNATURES["aiter.baton_wait"]
    assert (wait.id, wait.severity, wait.phase) == (
        signature.id,
        Severity.TRANSIENT,
        signature.phase,
    )
    assert (wait.process, wait.rank, wait.line_number) == ("Worker_TP3 pid=7", "TP3", 2)
    assert (wait.seconds, wait.state, wait.waited_s) == (10.0, "waiting", 60.0)
    assert wait.evidence == (Evidence(2, BATON),)
    assert "/cache/aiter/build/lock_module_moe_sorting" in wait.remedy
    explainer.feed("(Worker_TP3 pid=7) INFO it goes on", 80.0)
    (wait,) = explainer.result().waits
    assert (wait.state, wait.waited_s) == ("ended", None)


def test_each_process_that_waits_is_told() -> None:
    """Two ranks that wait for one lock are two waits, each by its own name and line."""
    explainer = _timed(
        (0.0, START),
        (10.0, f"(Worker_TP3 pid=7) {BATON}"),
        (20.0, f"(Worker_TP5 pid=9) {BATON}"),
    )
    waits = [(w.process, w.rank, w.line_number, w.seconds) for w in explainer.result().waits]
    assert waits == [("Worker_TP3 pid=7", "TP3", 2, 10.0), ("Worker_TP5 pid=9", "TP5", 3, 20.0)]


def test_progress_of_a_worker_makes_a_wait_young_again() -> None:
    """As long as workers come further, the engine may wait for them."""
    lines: list[tuple[float, str]] = [(0.0, START)]
    for at in range(60, 6_000, 60):
        lines.append((at, f"(EngineCore pid=2) {SHM}"))
        lines.append((at + 1, f"(Worker_TP0 pid=3) Capturing CUDA graphs: {at // 60}%|"))
    assert _timed(*lines).result().verdict is Verdict.LOADING


def test_probes_and_idle_counters_are_no_progress() -> None:
    """A hung server goes on answering probes and counting nothing."""
    access = '(APIServer pid=1) INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK'
    lines: list[tuple[float, str]] = [(0.0, START), (1.0, READY)]
    for at in range(60, 2_000, 60):
        lines += [(at, f"(EngineCore pid=2) {SHM}"), (at, IDLE), (at, access)]
    assert _cause(_timed(*lines).result()).id == "shm.bcast_wait"
    mixed = [(at, BUSY if line is IDLE else line) for at, line in lines]
    assert _timed(*mixed).result().verdict is Verdict.STARTED


def test_the_lock_that_is_waited_for_is_named() -> None:
    """A rank waits for many locks in turn; the remedy names the one that nobody released."""
    stale = BATON.replace("moe_sorting", "gemm")
    ranks = ["(Worker_TP2 pid=4) ", "(Worker_TP2 pid=4) import done", "(Worker_TP2 pid=4) "]
    explainer = _timed(
        (0.0, START), (1.0, ranks[0] + BATON), (50.0, ranks[1]), (60.0, ranks[2] + stale)
    )
    explainer.silence(1_000.0)
    cause = _cause(explainer.result())
    assert "lock_module_gemm" in cause.remedy
    assert (cause.line_number, cause.evidence[0].text) == (4, stale)
    assert (cause.seconds, cause.waited_s, cause.values["path"][-4:]) == (60.0, 1_000.0, "gemm")


def test_another_lock_is_progress() -> None:
    """A rank that goes from lock to lock comes further, however long all of them take."""
    lines = [(100.0 * at, f"(Worker_TP2 pid=4) {BATON}{at}") for at in range(1, 20)]
    assert _timed((0.0, START), *lines).result().verdict is Verdict.LOADING


IDLE = "(APIServer pid=1) INFO 11-29 13:03:01 [loggers.py:310] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s"
BUSY = IDLE.replace("generation throughput: 0.0", "generation throughput: 3.5")


def test_ready_ends_the_waits_of_the_start() -> None:
    """A server that was slow to compile and then idles all night is well."""
    night = [(float(at), IDLE) for at in range(200, 9_000, 10)]
    explainer = _timed(
        (0.0, START),
        (60.0, f"(EngineCore pid=2) {SHM}"),
        (70.0, f"(Worker_TP2 pid=4) {BATON}"),
        (100.0, READY),
        *night,
    )
    found = explainer.result()
    assert (found.verdict, {one.state for one in found.waits}) == (Verdict.STARTED, {"ended"})


@pytest.mark.parametrize(
    ("counted", "verdict"), [((20.0,), Verdict.FAILED), ((20.0, 200.0), Verdict.STARTED)]
)
def test_tokens_end_a_wait_unless_they_may_be_older(
    counted: tuple[float, ...], verdict: Verdict
) -> None:
    """New tokens need every worker; the first counts may hold tokens from before the wait."""
    explainer = _timed(
        (0.0, START),
        (1.0, READY),
        (10.0, f"(Worker_TP2 pid=4) {BATON}"),
        *((at, BUSY) for at in counted),
        *((float(at), IDLE) for at in range(300, 3_000, 10)),
    )
    assert explainer.result().verdict is verdict


def test_a_wait_that_is_not_told_again_is_over() -> None:
    """The line comes every minute while the wait lasts, and its process may say nothing else."""
    explainer = _timed((0.0, START), (1.0, READY), (60.0, f"(EngineCore pid=2) {SHM}"))
    explainer.feed(IDLE, 230.0)
    assert explainer.result().waits[0].state == "waiting"
    explainer.feed(IDLE, 250.0)
    assert explainer.result().waits[0].state == "ended"


def test_a_wait_without_any_time_counts_what_it_says_itself() -> None:
    """A log without stamps still tells that it waited for 60 seconds, 21 times."""
    assert _by_line([START[:17], *[SHM] * 20]).verdict is Verdict.LOADING
    assert _cause(_by_line([START[:17], *[SHM] * 21])).id == "shm.bcast_wait"


def test_times_are_taken_from_the_log() -> None:
    """The age of a wait comes from container stamps as well as from the logger's."""
    stamped = [
        "2026-12-31T23:59:00.5Z stderr F (Worker_TP2 pid=4) " + BATON,
        "2027-01-01T00:20:00.5Z stderr F (Worker_TP3 pid=5) " + BATON,
    ]
    logged = [
        f"(Worker_TP2 pid=4) INFO 12-31 23:59:00 [a.py:1] {BATON}",
        f"(Worker_TP3 pid=5) INFO 01-01 00:20:00 [a.py:1] {BATON}",
    ]
    for lines in (stamped, logged):
        for found in (_by_line(lines), _by_block(lines)):
            assert _cause(found).waited_s == 21 * 60


def test_a_time_out_names_the_wait_that_it_ended() -> None:
    """That the engine was not ready in time says less than what it was waiting for."""
    lines = [
        (0.0, START),
        (1.0, f"(Worker_TP2 pid=4) {BATON}"),
        (601.0, f"(APIServer pid=1) {SAMPLES['engine.ready_timeout']}"),
    ]
    assert _cause(_timed(*lines).result()).id == "aiter.baton_wait"
    assert _cause(_timed(lines[0], lines[2]).result()).id == "engine.ready_timeout"


@pytest.mark.parametrize(
    "lines",
    [
        [
            f"(Worker_TP0 pid=5) {BATON}",
            "(Worker_TP0 pid=5) INFO on",
            SAMPLES["engine.ready_timeout"],
        ],
        [SAMPLES["engine.ready_timeout"], f"(Worker_TP0 pid=5) {BATON}"],
    ],
    ids=["a wait that had ended", "a wait that came later"],
)
def test_a_time_out_without_a_wait_to_blame_is_the_cause(lines: list[str]) -> None:
    """Only what was waited for when the time was over explains it."""
    found = _by_line([START, *lines])
    assert _cause(found).id == "engine.ready_timeout"


def test_a_fault_goes_before_the_waits_it_left() -> None:
    """The rank that failed to build explains the ranks that wait for its lock."""
    explainer = _timed(
        (0.0, START),
        (1.0, f"(Worker_TP2 pid=4) {BATON}"),
        (9.0, f"(Worker_TP0 pid=2) {SAMPLES['aiter.jit_failed']}"),
        (5_000.0, f"(Worker_TP3 pid=5) {BATON}"),
    )
    assert _cause(explainer.result()).id == "aiter.jit_failed"


# --- junk, size and speed


def _junk(source: random.Random) -> bytes:
    parts = [
        *(sample.encode() for sample in SAMPLES.values()),
        *(line.encode() for line in _trace("(Worker_TP0 pid=5) ", "OddError: x")),
        START.encode(),
        READY.encode(),
        b"\x00\xff\xfe" * 9,
        b"\x1b[31m",
        b"\r",
        b"\n",
        b'{"log": ',
        b"(Worker pid=",
        b"9" * 50,
        source.randbytes(40),
    ]
    return b"".join(
        source.choice(parts) + source.choice([b"\n", b"\n", b"", b" "]) for _ in range(120)
    )


@pytest.mark.parametrize("seed", range(25))
def test_mixed_junk_is_explained_the_same_by_line_and_by_block(seed: int) -> None:
    """Known lines glued to binary junk raise nothing, and both ways to read them agree."""
    data = _junk(random.Random(seed)) + b"\n"
    explainer = Explainer()
    for line in data.decode("utf-8", errors="replace").removesuffix("\n").split("\n"):
        explainer.feed(line)
    by_line, by_block = explainer.result(), explain_stream(io.BytesIO(data))
    assert by_block == by_line
    json.dumps(by_line.as_dict())


@given(
    st.lists(st.one_of(st.text(max_size=80), st.sampled_from([*SAMPLES.values(), START, READY])))
)
@settings(max_examples=150, deadline=None)
def test_no_text_raises(lines: list[str]) -> None:
    """Any sequence of any text is explained, and what is shown is printable."""
    explainer = Explainer(SIGNATURES.values())
    for line in lines:
        explainer.feed(line)
    found = explainer.result()
    text = json.dumps(found.as_dict()) + render(found).replace("\n", "")
    assert text.isprintable()


@given(st.binary(max_size=400), st.floats(allow_nan=True, allow_infinity=True))
@settings(max_examples=100, deadline=None)
def test_no_bytes_and_no_time_raise(data: bytes, at: float) -> None:
    """Any bytes and any number as time are taken."""
    explainer = Explainer(SIGNATURES.values())
    explainer.feed_block(data)
    explainer.feed(data.decode("latin-1"), at)
    json.dumps(explainer.result().as_dict(), allow_nan=False)


def test_a_page_holds_no_control_characters() -> None:
    """Nothing in a log can move the cursor or colour the terminal of whoever reads the page."""
    bad = "\x07\x08\x9b2J\x1b[\u202e"
    lines = [START]
    for name in ("OddError", "OtherError"):
        lines += [line + bad for line in _trace("(Worker_TP0 pid=5) ", f"{name}: {bad}x")]
        lines += [f"(Worker_TP0 pid=5) ERROR 11-29 13:00:10 [{bad}a.py:1] {bad} {name}", ""]
    lines += [
        f"Fatal Python error: {bad}",
        f"Loading weights took {bad}",
        SAMPLES["worker.died"] + bad,
    ]
    found = _by_line(lines)
    assert render(found).replace("\n", "").isprintable()
    texts = [text for one in found.exceptions for text in (one.message, str(one.frames))]
    assert len(found.exceptions) == 3
    assert all(text.isprintable() for text in [*texts, *(one.detail for one in _stages(found))])


HOSTILE = """
import random
from healthcheck.explain import Explainer
parts = [
    " pid=", "(A pid=1)", "(Worker_", ")", "it/s](", "[rank1]: ", "  | ", "  +-+----", "| ",
    "Traceback (most recent call last):", "File \\"", "  File \\"a\\", line 1, in ", "2026-11-29T13:00:00Z ",
    "Nov 29 13:00:00 a b[1]: ", "[pod/", '{"log": "', "[" * 99, "INFO 11-29 13:00:00 [", "\\x1b[", "\\x1b]", "Kind: ",
    "a.", " ", "9", "checkpoint shards:", "Capturing ", "generation throughput: ", "Request ", "\\r",
]
explainer = Explainer()
source = random.Random(3)
for first in parts:
    for second in [*parts, ""]:
        line = (source.choice(parts) + (first + second) * 16_384)[:16_384]
        if source.random() < 0.5:
            explainer.feed(line)
        else:
            explainer.feed_block(line.encode() + b"\\n")
explainer.result()
print("done")
"""


def test_no_line_can_make_the_reader_backtrack_for_long() -> None:
    """Full lines of each prefix and mark over and over are taken apart in minutes, where a
    backtracking regex would need years."""
    run = subprocess.run(
        [sys.executable, "-c", HOSTILE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert run.stdout == "done\n"


def _size(explainer: Explainer) -> int:
    """What an explanation takes as text, which grows with anything that is kept."""
    return len(json.dumps(explainer.result().as_dict()))


def test_what_is_kept_does_not_grow() -> None:
    """Hundreds of processes, traces and waits, and as many again, leave an explanation of bounded size."""
    explainer = Explainer()
    sizes = []
    for round_ in range(3):
        for number in range(500):
            process = f"(Worker_TP{number} pid={round_}{number}) "
            explainer.feed(process + BATON, float(number))
            for line in _trace(process, f"OddError: {number} of {round_}"):
                explainer.feed(line)
        sizes.append(_size(explainer))
    assert sizes[2] < 1.2 * sizes[1] < 200_000


def test_an_overlong_line_is_cut() -> None:
    """A line of megabytes is looked at in its first 16 kB only, and the next line is itself again."""
    long = b"x" * 20_000 + SAMPLES["rocm.no_gpu"].encode() + b"y" * 3_000_000 + b"\n"
    found = explain_stream(io.BytesIO(long + SAMPLES["mem.kv_none"].encode()))
    assert [one.id for one in found.findings] == ["mem.kv_none"]
    assert (found.lines, _cause(found).line_number) == (2, 2)


MEMORY = """
import io, sys
from pathlib import Path
from healthcheck.explain import explain_stream

class Endless(io.RawIOBase):
    left = 150_000_000
    def __init__(self, unit):
        self.unit = unit
    def readable(self):
        return True
    def read(self, size=-1):
        self.left -= size
        return self.unit[:size] if self.left > 0 else b""

line = b'(APIServer pid=7) INFO:     10.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK' + b"\\n"
unit = {"lines": line * 9_000, "no newline": b"x" * 900_000}[sys.argv[1]]
explain_stream(Endless(unit))
status = Path("/proc/self/status").read_text()  # ru_maxrss would be the parent's
print(int(status.split("VmHWM:")[1].split()[0]) // 1024)
"""


@pytest.mark.parametrize("kind", ["lines", "no newline"])
def test_memory_stays_below_fifty_megabytes(kind: str) -> None:
    """Neither a large log nor a line without an end is ever held as a whole."""
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, kind],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert int(run.stdout) < 50


# --- following


def test_a_growing_and_rotated_log_is_followed(tmp_path: Path) -> None:
    """The file may come late, grow by parts of lines, be renamed and be cut to nothing."""
    path, explainer = tmp_path / "server.log", Explainer()
    tail = Tail(path, explainer)
    assert not tail.read()
    with path.open("w") as log:
        for part in (START[:20], f"{START[20:]}\n"):
            log.write(part)
            log.flush()
            assert tail.read()
        assert explainer.result().verdict is Verdict.LOADING
        path.rename(tmp_path / "server.log.1")
        log.write(f"{SAMPLES['mem.kv_none']}\n")
    path.write_text(f"{START}\n{READY}\n")
    tail.read()
    assert explainer.result().verdict is Verdict.STARTED
    os.truncate(path, 0)
    tail.read()
    path.write_text(f"{START}\n")
    tail.read()
    assert explainer.result().verdict is Verdict.LOADING
    with path.open("a") as log:
        log.write(SAMPLES["mem.hip_oom"])  # without a newline, as a killed process leaves it
    tail.read()
    tail.finish_line()
    tail.close()
    found = explainer.result()
    assert _cause(found).id == "mem.hip_oom"
    assert [one.cause for one in found.earlier_attempts] == ["mem.kv_none", ""]


# --- the command


def test_the_command_prints_the_cause_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A log with a cause is exit code 1, and the page has cause, remedy, line and frames."""
    assert explain.main([str(DATA / "log-missing-d2t.log")]) == 1
    page = capsys.readouterr().out
    assert page.startswith("FAILED: dspark.missing_d2t_attr in Worker pid=17373")
    for word in ("remedy ", "from     Worker pid=17373, line 74", "frame ", "consequences"):
        assert word in page


def test_the_command_reads_standard_input() -> None:
    """A dash is standard input, whatever bytes come."""
    run = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from healthcheck.explain import main; sys.exit(main(['-']))",
        ],
        cwd=ROOT,
        input=b"\xff\x00junk\n" + SAMPLES["rocm.no_gpu"].encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stderr) == (1, b"")
    assert b"rocm.no_gpu" in run.stdout


def test_an_interrupt_shows_what_was_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever pipes a log that does not end and interrupts sees what it said until then."""

    class Pipe(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:
            if data := super().read1(-1 if size is None else size):
                return data
            raise KeyboardInterrupt

    pipe = Pipe(f"{START}\n{SAMPLES['mem.kv_none']}\n".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(pipe))
    assert explain.main(["-"]) == 1
    assert "mem.kv_none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "reason"), [("missing", "No such file or directory"), ("folder", "Is a directory")]
)
def test_what_cannot_be_read_is_one_line(
    what: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 and one line on standard error: the file, why, and what to give."""
    path = tmp_path if what == "folder" else tmp_path / "none.log"
    assert explain.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"explain: cannot read {str(path)!r}: {reason}; give a log file, or - for standard input\n"
    )


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """Piped into what closes its end at once, the exit code still tells, and nothing is traced."""
    command = [
        sys.executable,
        "-c",
        f"import sys; sys.stdin.readline(); from healthcheck.explain import main; "
        f"sys.exit(main([{str(DATA / 'log-missing-d2t.log')!r}]))",
    ]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdin and run.stdout and run.stderr
        run.stdout.close()
        run.stdin.close()  # now it may begin
        error = run.stderr.read()
    assert (run.returncode, error) == (1, b"")
