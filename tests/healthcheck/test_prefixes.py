"""Whatever collector wrote a log, its processes, stages, traces and causes are seen behind it."""

from __future__ import annotations

import io
import json

import pytest

from healthcheck.explain import Explainer, Explanation, explain_stream
from healthcheck.explain.prefixes import MOST_SHAPES, Prefixes
from healthcheck.explain.stamps import find_stamp
from tests.support.log_forms import FORMS
from tests.support.log_samples import SAMPLES

API, ENGINE = "(APIServer pid=1) ", "(EngineCore pid=311) "
RANK = "(Worker_TP2 pid=482) "
HEAD = "11-30 05:02:30 [multiproc_executor.py:912] "
START = [
    f"{API}INFO 11-30 05:00:00 [api_utils.py:273] non-default args: {{'port': 8000}}",
    f"{API}INFO 11-30 05:00:04 [model.py:645] Resolved architecture: DeepseekV4ForCausalLM",
    f"{ENGINE}INFO 11-30 05:00:20 [core.py:121] Initializing a V1 LLM engine (v0.27.1) with x",
    f"{RANK}INFO 11-30 05:00:40 [model_runner.py:308] Loading model from scratch...",
    f"{RANK}Loading safetensors checkpoint shards:  50% Completed | 24/48 [00:25<00:10,  1.00it/s]",
    f"{RANK}INFO 11-30 05:01:35 [default_loader.py:430] Loading weights took 52.31 seconds",
]
FRAMES = [
    "Traceback (most recent call last):",
    '  File "/vllm/v1/worker/gpu_worker.py", line 512, in profile',
    "    self.model_runner.profile_run()",
]
QUIET = [f"{API}INFO 11-30 05:02:00 [a.py:1] nothing {number}" for number in range(30)]
GONE = [
    f"{ENGINE}ERROR 11-30 05:02:32 [core.py:1349] EngineCore failed to start.",
    f"{API}{SAMPLES['engine.core_init_failed']}",
]
DEATHS = {
    "known, logged": [f"{RANK}ERROR {HEAD}{line}" for line in (*FRAMES, SAMPLES["mem.hip_oom"])],
    "unknown, logged": [f"{RANK}ERROR {HEAD}{line}" for line in (*FRAMES, "OddError: no such 7")],
    "unknown, printed": [f"{RANK}{line}" for line in (*FRAMES, "OddError: no such 7")],
    "unknown, of nobody": [*FRAMES, "OddError: no such 7"],
    "native, of nobody": [SAMPLES["rocm.mem_fault"]],
}


def _wrapped(form: str, lines: list[str]) -> bytes:
    return "".join(f"{FORMS[form](at, line)}\n" for at, line in enumerate(lines)).encode()


def _explained(data: bytes) -> Explanation:
    """By block, and the same by line."""
    explainer = Explainer()
    for line in data.decode().removesuffix("\n").split("\n"):
        explainer.feed(line)
    found = explain_stream(io.BytesIO(data))
    assert found == explainer.result()
    return found


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("form", FORMS)
def test_a_failed_start_is_seen_behind_every_prefix(form: str, death: str) -> None:
    """Cause, process, frames and stages are those of the same log without a prefix."""
    found = _explained(_wrapped(form, [*START, *QUIET, *DEATHS[death], *GONE]))
    plain = _explained(_wrapped("nothing", [*START, *QUIET, *DEATHS[death], *GONE]))
    assert found.cause is not None and plain.cause is not None, found.headline
    assert found.headline == plain.headline
    assert (found.cause.id, found.cause.process) == (plain.cause.id, plain.cause.process)
    assert found.cause.frames == plain.cause.frames
    assert [one.text for one in found.cause.evidence] == [one.text for one in plain.cause.evidence]
    assert [w.id for w in found.wrappers] == ["engine.core_start_failed", "engine.core_init_failed"]
    assert found.startup is not None and plain.startup is not None
    stages = [(stage.name, stage.detail) for stage in found.startup.stages]
    assert stages == [(stage.name, stage.detail) for stage in plain.startup.stages]


@pytest.mark.parametrize("form", FORMS)
def test_the_time_of_a_line_is_that_of_its_prefix(form: str) -> None:
    """Ten seconds between two lines are ten seconds, by the collector's stamp or the logger's."""
    filler = [f"{RANK}INFO 11-30 05:00:{at:02} [a.py:1] on" for at in range(1, 10)]
    last = f"{RANK}ERROR 11-30 05:00:10 [a.py:1] {SAMPLES['mem.hip_oom']}"
    found = _explained(_wrapped(form, [START[0], *filler, last]))
    assert found.cause is not None
    assert found.cause.seconds == pytest.approx(10.0, abs=0.01)


@pytest.mark.parametrize("stream", ["stderr", "stdout"])
def test_the_parts_of_a_line_are_one(stream: str) -> None:
    """The runtime of Kubernetes parts a long line; its parts may have another's between them."""
    other = "stdout" if stream == "stderr" else "stderr"
    parts = [
        f"2026-11-30T05:00:40Z {stream} P {RANK}ERROR {HEAD}torch.OutOfMemoryError: HIP out ",
        f"2026-11-30T05:00:40Z {other} F (Worker_TP1 pid=481) INFO it goes on",
        f"2026-11-30T05:00:40Z {stream} P of memory. Tried to",
        f"2026-11-30T05:00:40Z {stream} F  allocate 2.50 GiB. GPU 2 has",
    ]
    data = _wrapped("CRI", START + ["nothing"] * 30).decode() + "\n".join(parts) + "\n"
    found = _explained(data.encode())
    assert found.cause is not None
    assert (found.cause.id, found.cause.process) == ("mem.hip_oom", "Worker_TP2 pid=482")
    assert "2.50 GiB" in found.cause.remedy


def test_vllms_own_records_name_process_level_and_trace() -> None:
    """With a JSON formatter there is no prefix: the record's fields are what it would say."""
    records = [
        {"asctime": "2026-11-30 06:00:00,000", "levelname": "INFO", "processName": "MainProcess",
         "process": 1, "message": "non-default args: {'port': 8000}"},
        {"asctime": "2026-11-30 06:00:21,000", "levelname": "ERROR", "processName": "EngineCore",
         "process": 2, "message": "It failed", "exc_info": "\n".join([*FRAMES, "OddError: 7"])},
        {"asctime": "2026-11-30 06:00:22,000", "levelname": "WARNING", "processName": "EngineCore",
         "process": 2, "message": "It goes", "exc_info": "\n".join([*FRAMES, "QuietError: 8"])},
    ]  # fmt: skip
    data = "".join(f"{json.dumps(record)}\n" for record in records).encode()
    found = _explained(data)
    assert found.cause is not None
    assert (found.cause.process, found.cause.seconds) == ("EngineCore pid=2", 21.0)
    assert found.cause.evidence[0].text == "OddError: 7"
    assert found.cause.frames[-1].function == "profile"
    assert [one.kind for one in found.exceptions] == ["OddError"]


def test_what_is_glued_to_a_line_is_no_prefix() -> None:
    """A line that another process did not end before it is parted, and nothing learnt of it."""
    glued = f"See https://nanobind.readthedocs.io/refleaks.html{API}ERROR {HEAD}"
    lines = [START[0], glued + FRAMES[0], *[f"{API}ERROR {HEAD}{line}" for line in FRAMES[1:]]]
    found = _explained("\n".join([*lines, f"{API}ERROR {HEAD}OddError: x\n"]).encode())
    assert found.cause is not None
    assert (found.cause.process, found.cause.evidence[0].text) == ("APIServer pid=1", "OddError: x")


def test_a_prefix_is_not_learnt_from_what_tells_something() -> None:
    """A known line, a bar, an indented mark of a group: they stay the server's own text."""
    prefixes = Prefixes(lambda text: "No HIP GPUs" in text)
    for text in (
        f"RuntimeError: No HIP GPUs are available {RANK}INFO x",
        f"Capturing graphs: 88%|####| 45/51 [00:05<00:00,  9.32it/s]{RANK}x",
        "  + Exception Group Traceback (most recent call last):",
        "    | Traceback (most recent call last):",
    ):
        assert [one.text for one in prefixes.unwrap(text, learn=True)] == [text]


def test_a_shape_fits_lines_of_the_same_form_only() -> None:
    """Words with digits may differ, the others not; what was not learnt is not taken off."""
    prefixes = Prefixes()
    list(prefixes.unwrap(f"gpu-1 dspark[4711]: {API}x", learn=True))

    def rest(text: str) -> str:
        (one,) = prefixes.unwrap(text, learn=False)
        return one.text

    assert rest("gpu-22 dspark[99]: Fatal Python error: Aborted") == "Fatal Python error: Aborted"
    for text in ("gpu-1 kernel[99]: x", "OddError: gpu-1 dspark[4711]: x", "  gpu-1 dspark[1]: x"):
        assert rest(text) == text


def test_the_shapes_of_a_log_are_bounded() -> None:
    """A log of ten thousand prefixes keeps the last few."""
    prefixes = Prefixes()
    for number in range(10_000):
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        list(prefixes.unwrap(f"{word}:{'-' * (number % 50)}: {API}x", learn=True))
    assert len(prefixes._shapes) <= MOST_SHAPES


@pytest.mark.parametrize(
    ("text", "clock", "seconds"),
    [
        ("2026-11-30T05:00:00Z ", "epoch", 1796014800.0),
        ("x 2026-11-30 06:00:00,250+0100 ", "epoch", 1796014800.25),
        ("1796014800.5 host", "epoch", 1796014800.5),
        ("1796014800500 ", "epoch", 1796014800.5),
        ("1796014800000000 ", "epoch", 1796014800.0),
        ("1796014800000000000\t", "epoch", 1796014800.0),
        ("[   98.104321] host", "boot", 98.104321),
    ],
)
def test_stamps_are_known_by_their_form(text: str, clock: str, seconds: float) -> None:
    """Whoever wrote them, they are seconds on a clock of that name."""
    stamp = find_stamp(text)
    assert stamp is not None
    assert (stamp.clock, stamp.seconds) == (clock, pytest.approx(seconds))


@pytest.mark.parametrize("text", ["", "host[17960]: ", "2026-13-45T99:00:00Z ", "10.0.0.1:8000 "])
def test_what_is_no_stamp_gives_no_time(text: str) -> None:
    """Numbers of other kinds are no times."""
    assert find_stamp(text) is None
