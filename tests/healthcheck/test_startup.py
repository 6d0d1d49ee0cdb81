"""The timeline of a start, out of its log: stages, seconds, percent, ranks, restarts, rotation."""

from __future__ import annotations

import io
import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from healthcheck import explain
from healthcheck.explain import Explainer, explain_stream, following
from healthcheck.explain.startup import STAGES, Stage, Startup
from healthcheck.explain.text import render
from healthcheck.service.cause import LOOK_BYTES, PAUSE_S, Log
from healthcheck.verdict import State
from tests.support.log_samples import SAMPLES

DATA = Path(__file__).with_name("data")
SHARDS = "Loading safetensors checkpoint shards:"

# A start as vLLM 0.27.1 words it on a GPU: seconds, process, logger's line or a bar.
GPU_START: tuple[tuple[float, str, str], ...] = (
    (0.0, "APIServer pid=1", "non-default args: {'api_key': ['hunter2'], 'port': 8000}"),
    (4.0, "APIServer pid=1", "Resolved architecture: DeepseekV4ForCausalLM"),
    (4.5, "APIServer pid=1", "Resolved architecture: DSparkDeepseekV4ForCausalLM"),
    (16.0, "EngineCore pid=2", "Initializing a V1 LLM engine (v0.27.1) with config: model='x'"),
    (30.0, "Worker_TP0 pid=3", "Starting to load model deepseek..."),
    (32.0, "Worker_TP1 pid=4", "Starting to load model deepseek..."),
    (70.0, "Worker_TP0 pid=3", "Loading weights took 36.20 seconds"),
    (72.0, "Worker_TP1 pid=4", "Loading weights took 38.00 seconds"),
    (72.5, "Worker_TP0 pid=3", "Loading drafter model..."),
    (75.0, "Worker_TP0 pid=3", "Loading weights took 2.10 seconds"),
    (80.0, "Worker_TP0 pid=3", "[aiter] start build [module_moe_sorting] under /cache/aiter"),
    (120.0, "Worker_TP0 pid=3", "[aiter] finish build [module_moe_sorting], cost 40.0s"),
    (180.0, "Worker_TP0 pid=3", "torch.compile took 30.00 s in total"),
    (210.0, "Worker_TP0 pid=3", "Graph capturing finished in 20 secs, took 1.25 GiB"),
    (212.0, "APIServer pid=1", "Starting vLLM server on http://0.0.0.0:8000"),
    (212.0, "APIServer pid=1", "Available routes are:"),
)


def _fed(lines: tuple[tuple[float, str, str], ...] = GPU_START, *, until: float = 1e9) -> Explainer:
    explainer = Explainer()
    for at, process, text in lines:
        if at <= until:
            explainer.feed(f"({process}) INFO 11-29 13:00:00 [a.py:1] {text}", at)
    return explainer


def _startup(explainer: Explainer) -> Startup:
    startup = explainer.result().startup
    assert startup is not None
    return startup


def _stages(startup: Startup | None) -> dict[str, Stage]:
    assert startup is not None
    return {stage.name: stage for stage in startup.stages}


def _stamped(second: int, text: str) -> str:
    return f"2026-11-29T13:{second // 60:02}:{second % 60:02}.0Z stderr F {text}\n"


def _start(begin: int, *, until: str = "ready") -> str:
    """A start with container stamps that begins `begin` seconds after the hour."""
    lines = [
        (0, "listen", "(APIServer pid=1) non-default args: {}"),
        (5, "config", "(EngineCore pid=2) Initializing a V1 LLM engine (v0.27.1)"),
        (10, "weights", f"(Worker pid=3) {SHARDS}  25% Completed | 12/48 [00:05<00:15]"),
        (20, "weights", "(Worker pid=3) Loading weights took 12.00 seconds"),
        (40, "ready", "(APIServer pid=1) INFO:     Application startup complete."),
    ]
    last = STAGES.index(until)
    return "".join(
        _stamped(begin + second, text) for second, name, text in lines if STAGES.index(name) <= last
    )


# --- stages


def test_every_stage_has_its_seconds_and_its_line() -> None:
    """A whole start on a GPU: when each stage began, how long it took, and what told of it."""
    startup = _startup(_fed())
    assert [(one.name, one.began_s, one.seconds) for one in startup.stages] == [
        ("listen", 0.0, 4.0),
        ("config", 4.0, 12.0),
        ("weights", 30.0, 42.0),
        ("draft", 72.5, 2.5),
        ("compile", 80.0, 70.0),
        ("capture", 190.0, 20.0),
        ("ready", 212.0, 0.0),
    ]
    assert all(stage.done for stage in startup.stages)
    assert (startup.ready, startup.seconds) == (True, 212.0)
    stages = _stages(startup)
    assert stages["config"].detail == "Initializing a V1 LLM engine (v0.27.1)"
    assert stages["capture"].detail == "Graph capturing finished in 20 secs, took 1.25 GiB"
    assert stages["ready"].detail == "Starting vLLM server on http://0.0.0.0:8000"


def test_arguments_with_a_key_are_not_shown() -> None:
    """vLLM prints its arguments, an API key among them; of these only the port is passed on."""
    startup = _startup(_fed())
    assert _stages(startup)["listen"].detail == "'port': 8000"
    assert "hunter2" not in json.dumps(startup.as_dict())


def test_work_that_is_told_afterwards_began_before_its_line() -> None:
    """torch.compile speaks when it is done: 30 s before its line it began, or after the draft."""
    lines = [one for one in GPU_START if "[aiter]" not in one[2]]
    stages = _stages(_startup(_fed(tuple(lines))))
    assert (stages["compile"].began_s, stages["compile"].seconds) == (150.0, 30.0)
    long = (85.0, "Worker_TP0 pid=3", "torch.compile took 500.00 s in total")
    stages = _stages(_startup(_fed((*GPU_START[:10], long))))
    assert (stages["compile"].began_s, stages["compile"].seconds) == (72.5, 12.5)


@pytest.mark.parametrize(
    ("until", "name", "so_far"), [(40.0, "weights", 2.0), (100.0, "compile", 0.0)]
)
def test_a_stage_that_goes_on_counts_so_far(until: float, name: str, so_far: float) -> None:
    """Silence makes the last stage longer, and nothing else."""
    explainer = _fed(until=until)
    before = _startup(explainer)
    assert (before.stages[-1].name, before.stages[-1].done) == (name, False)
    assert before.stages[-1].seconds == so_far
    explainer.silence(50.0)
    after = _startup(explainer)
    assert after.stages[-1].seconds == so_far + 50.0
    assert after.stages[:-1] == before.stages[:-1]
    assert (after.ready, after.seconds) == (False, (before.seconds or 0.0) + 50.0)


def test_a_start_that_failed_takes_no_longer() -> None:
    """Hours after a fatal line the stage in which it came still has its seconds."""
    explainer = _fed(until=70.0)
    explainer.feed(f"(Worker_TP1 pid=4) {SAMPLES['mem.hip_oom']}", 71.0)
    explainer.silence(7200.0)
    assert _startup(explainer).seconds == 71.0


def test_percent_and_seconds_of_a_bar() -> None:
    """The bar's percent is the stage's, in the headline too as long as the stage goes on."""
    explainer = _fed(until=32.0)
    explainer.feed(f"(Worker_TP0 pid=3) {SHARDS}  50% Completed | 24/48 [00:20<00:20]", 50.0)
    weights = _stages(_startup(explainer))["weights"]
    assert weights == Stage(
        "weights", 30.0, 20.0, False, 50, f"{SHARDS}  50% Completed | 24/48 [00:20<00:20]"
    )
    assert _startup(explainer).reached == "weights (50 %)"
    assert "weights (50 %)" in explainer.result().headline


def test_the_first_line_of_any_rank_begins_a_stage_and_its_first_bar_is_shown() -> None:
    """Ranks that interleave: the slower one's bar and later lines move no beginning back."""
    explainer = _fed(until=16.0)
    for at, rank, percent in ((20.0, 1, 40), (21.0, 0, 10), (25.0, 1, 60), (26.0, 0, 30)):
        explainer.feed(f"(Worker_TP{rank} pid={rank}) {SHARDS}  {percent}% Completed | 1/9", at)
    weights = _stages(_startup(explainer))["weights"]
    assert (weights.began_s, weights.progress_percent) == (20.0, 60)


def test_the_order_of_ranks_changes_no_stage() -> None:
    """Whatever rank speaks first, a stage begins with the first and ends with the last of them."""
    random_order = random.Random(7)
    wanted = None
    for _ in range(20):
        ranks = list(range(8))
        lines = list(GPU_START[:4])
        for at, text in ((30.0, "Starting to load model x..."), (60.0, "Loading weights took 9 s")):
            random_order.shuffle(ranks)
            lines += [(at + n, f"Worker_TP{rank} pid={rank}", text) for n, rank in enumerate(ranks)]
        weights = _stages(_startup(_fed(tuple(lines))))["weights"]
        wanted = wanted or replace(weights)
        assert weights == wanted
        assert (weights.began_s, weights.seconds, weights.done) == (30.0, 37.0, True)


def test_a_log_without_stamps_has_stages_without_seconds() -> None:
    """No time is made up where the log gives none."""
    explainer = Explainer()
    explainer.feed("(APIServer pid=1) non-default args: {}")
    explainer.feed(f"(Worker pid=2) {SHARDS}  50% Completed | 24/48")
    startup = _startup(explainer)
    assert [(one.began_s, one.seconds) for one in startup.stages] == [(None, None), (None, None)]
    assert (startup.seconds, startup.reached) == (None, "weights (50 %)")
    assert "\n  listen          ?        ?\n" in render(explainer.result())


def test_a_further_start_begins_a_new_timeline() -> None:
    """In a log of several starts the last one counts from its own first line."""
    for text in (_start(0), _start(0, until="config")):
        found = explain_stream(io.BytesIO((text + _start(600, until="weights")).encode()))
        startup = found.startup
        assert startup is not None
        assert [one.name for one in startup.stages] == ["listen", "config", "weights"]
        assert (startup.stages[0].began_s, startup.stages[2].began_s) == (0.0, 10.0)
        assert (startup.ready, startup.seconds) == (False, 20.0)


def test_the_command_prints_the_timeline(capsys: pytest.CaptureFixture[str]) -> None:
    """`explain` on a real log shows a row for each stage, and the same as json."""
    assert explain.main([str(DATA / "log-healthy.log")]) == 0
    page = capsys.readouterr().out
    rows = page[page.index("timeline (seconds from the first line of the start)") :].splitlines()
    assert [row.split()[0] for row in rows[2:8]] == [
        "listen", "config", "weights", "draft", "compile", "ready",
    ]  # fmt: skip
    assert rows[3].split()[1:3] == ["0.0", "5.0"]
    assert rows[4].split()[1:5] == ["12.0", "0.0", "100", "%"]
    explain.main([str(DATA / "log-healthy.log"), "--format", "json"])
    startup = json.loads(capsys.readouterr().out)["startup"]
    assert startup["ready"] is True
    assert startup["stages"][2]["detail"] == "Loading weights took 0.00 seconds"


# --- the log as the health service follows it


class Clock:
    """Seconds of the loop: each look comes a pause after the last one."""

    def __init__(self) -> None:
        self.now = 0.0

    def later(self) -> float:
        self.now += PAUSE_S
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock of its own for each test."""
    return Clock()


def test_a_growing_log_is_followed_without_reading_it_again(tmp_path: Path, clock: Clock) -> None:
    """Stages come as lines come, half lines too; what was read need not be there any more."""
    path = tmp_path / "server.log"
    log = Log(path)
    assert log.startup(clock.later()) is None
    text = _start(0)
    cut = text.index("12/48")
    path.write_text(text[:cut], "utf-8")
    assert list(_stages(log.startup(clock.later()))) == ["listen", "config"]
    with path.open("r+") as file:
        file.write(" " * 20)  # whoever reads from the beginning again sees no start
        file.seek(0, os.SEEK_END)
        file.write(text[cut:])
    startup = log.startup(clock.later())
    assert list(_stages(startup)) == ["listen", "config", "weights", "ready"]
    assert startup is not None
    assert (startup.ready, startup.seconds) == (True, 40.0)


def test_a_bar_that_has_not_ended_its_line_is_seen(tmp_path: Path, clock: Clock) -> None:
    """tqdm draws graph capture over one line that ends when it is done."""
    path = tmp_path / "server.log"
    bar = "\rCapturing CUDA graphs (decode, FULL):  {} |###  | {} [00:05<00:05]"
    path.write_text(_start(0, until="weights") + "(Worker_TP0 pid=3) " + bar.format("3%", "2/60"))
    log = Log(path)
    capture = _stages(log.startup(clock.later()))["capture"]
    assert (capture.progress_percent, capture.began_s) == (3, 20.0)
    with path.open("a") as file:
        file.write(bar.format("50%", "30/60"))
    capture = _stages(log.startup(clock.later()))["capture"]
    assert (capture.progress_percent, capture.done) == (50, False)
    with path.open("a") as file:
        file.write(bar.format("100%", "60/60") + "\n")
    assert _stages(log.startup(clock.later()))["capture"].progress_percent == 100


def test_silence_of_the_file_is_time_of_the_stage(tmp_path: Path, clock: Clock) -> None:
    """A start that says nothing for an hour has been an hour longer at its stage."""
    path = tmp_path / "server.log"
    path.write_text(_start(0, until="config"), "utf-8")
    then = path.stat().st_mtime - 3600
    os.utime(path, (then, then))
    seconds = Log(path).startup(clock.later())
    assert seconds is not None
    assert (seconds.seconds or 0.0) >= 3600


def test_rotation_keeps_the_timeline_until_the_next_start(tmp_path: Path, clock: Clock) -> None:
    """A log that is cut or replaced while the server serves says nothing of another start."""
    path = tmp_path / "server.log"
    path.write_text(_start(0), "utf-8")
    log = Log(path)
    first = log.startup(clock.later())
    os.truncate(path, 0)
    assert log.startup(clock.later()) == first
    path.rename(tmp_path / "server.log.1")
    assert log.startup(clock.later()) == first
    path.write_text(_start(1200, until="weights"), "utf-8")
    second = log.startup(clock.later())
    assert second is not None
    assert (second.ready, list(_stages(second))) == (False, ["listen", "config", "weights"])
    assert second.stages[0].began_s == 0.0


def _access_lines(size: int) -> bytes:
    line = b'(APIServer pid=7) INFO:     10.0.0.1:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    return line * (size // len(line))


def test_a_large_log_is_read_from_its_last_start(tmp_path: Path, clock: Clock) -> None:
    """A service that comes late finds the last start behind many megabytes, and no client's text
    passes for one."""
    path = tmp_path / "server.log"
    serving = _access_lines(3 * 1024 * 1024)
    forged = b'(APIServer pid=7) INFO:     10.0.0.1:4 - "GET /non-default args: HTTP/1.1" 404\n'
    path.write_bytes(
        serving + _start(0).encode() + serving + _start(900).encode() + serving + forged + serving
    )
    log = Log(path)
    startup = log.startup(clock.later())
    assert startup is not None
    assert (startup.ready, startup.seconds) == (True, 40.0)
    assert startup.stages[0].began_s == 0.0


def test_a_start_beyond_the_search_is_not_known(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start too far back has no timeline, and the end of the log is read all the same."""
    monkeypatch.setattr(following, "SEARCH_BYTES", 2 * 1024 * 1024)
    path = tmp_path / "server.log"
    died = f"(Worker pid=2) {SAMPLES['rocm.mem_fault']}\n"
    path.write_bytes(_start(0).encode() + _access_lines(6 * 1024 * 1024) + died.encode())
    log = Log(path)
    assert log.startup(clock.later()) is None
    looks = [
        log.cause(State.DEAD, clock.later()) for _ in range(following.TAIL_BYTES // LOOK_BYTES)
    ]
    cause = looks[-1]
    assert cause is not None
    assert cause.id == "rocm.mem_fault"


def test_one_look_reads_a_bounded_part(tmp_path: Path, clock: Clock) -> None:
    """A burst of log is read over several looks, so that no turn of the loop is long."""
    path = tmp_path / "server.log"
    path.write_text(_start(0, until="weights"), "utf-8")
    log = Log(path)
    log.startup(clock.later())
    with path.open("ab") as file:
        file.write(_access_lines(LOOK_BYTES + LOOK_BYTES // 2))
        file.write(_start(0).encode()[-80:])
    first = log.startup(clock.later())
    second = log.startup(clock.later())
    assert first is not None and second is not None
    assert (first.ready, second.ready) == (False, True)


def test_a_look_within_the_pause_reads_nothing(tmp_path: Path, clock: Clock) -> None:
    """Cause and timeline of one turn come of one look."""
    path = tmp_path / "server.log"
    path.write_text(_start(0, until="config"), "utf-8")
    log = Log(path)
    first = log.startup(clock.later())
    path.write_text(_start(0), "utf-8")
    assert log.startup(clock.now + PAUSE_S / 2) is first


def test_a_log_that_cannot_be_read_tells_nothing(tmp_path: Path, clock: Clock) -> None:
    """A folder in the place of the log is no error of the service."""
    log = Log(tmp_path)
    assert log.startup(clock.later()) is None
    assert log.cause(State.DEAD, clock.later()) is None


def test_a_line_that_nobody_ends_is_taken_after_a_while(tmp_path: Path, clock: Clock) -> None:
    """A process that is killed leaves its last line without an end; it may be the cause."""
    path = tmp_path / "server.log"
    path.write_text(_start(0, until="config") + SAMPLES["rocm.no_gpu"], "utf-8")
    then = path.stat().st_mtime - 60
    os.utime(path, (then, then))
    cause = Log(path).cause(State.DEAD, clock.later())
    assert cause is not None
    assert cause.id == "rocm.no_gpu"
