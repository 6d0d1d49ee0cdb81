"""The rehearsal server itself: it speculates as production does, and each fault shows as it should."""

import math
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import requests

from deploy import recipe
from deploy.rehearsal.supervisor import free_port
from deploy.rehearsal.tokenizer import VOCABULARY
from healthcheck.client import Client, exposition
from healthcheck.service import idle
from healthcheck.service.generate import Generator
from healthcheck.service.loop import Loop
from healthcheck.verdict import Policy, State
from tests.support.inline_runner import InlineRunner
from tests.support.rehearsal_server import ENGINE_CORE, MODEL, WORKER, RehearsalServer
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.real

# What the acceptance rate of the tiny draft may be: FACTS of the models, not of production.
_RATE_FLOOR, _RATE_CEILING = 0.4, 0.9

# Longer than a completion takes, shorter than VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS; seconds.
_HUNG_FOR = 15.0

# The gate asks again after pauses; a busy machine answers late.
_REFUSED_WITHIN_S = 300.0


@pytest.fixture(scope="module")
def trigger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that makes the server of this module hang while it exists."""
    return tmp_path_factory.mktemp("trigger") / "hang"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trigger: Path) -> Iterator[RehearsalServer]:
    """One server for the tests of a healthy one; its fault acts only while the trigger exists."""
    log = tmp_path_factory.mktemp("server") / "log"
    with RehearsalServer(log, fault="hang-in-draft", trigger=trigger) as running:
        yield running


def test_drafts_are_counted_and_mostly_accepted(server: RehearsalServer) -> None:
    """A sampled request raises the counters, with K drafts a step and an acceptance in its band."""
    speculative = recipe.load().profile("rehearsal").speculative
    assert speculative is not None
    before = server.counters()
    answer = server.complete(max_tokens=128)
    after = server.counters()
    assert answer.status_code == 200
    rise = {name: after[name] - before.get(name, 0.0) for name in after}
    drafts, drafted = rise["drafts_total"], rise["draft_tokens_total"]
    accepted = rise["accepted_tokens_total"]
    assert drafts > 0
    assert drafted == drafts * speculative["num_speculative_tokens"]
    assert accepted == sum(
        count for name, count in rise.items() if name.startswith("accepted_tokens_per_pos_total:")
    )
    assert _RATE_FLOOR < accepted / drafted < _RATE_CEILING


def test_seeded_requests_repeat_and_seeds_differ(server: RehearsalServer) -> None:
    """The same seed gives the same sampled text, another seed another text."""
    texts = [server.complete(seed=seed).json()["choices"][0]["text"] for seed in (11, 11, 12)]
    assert texts[0] == texts[1] != texts[2]


def test_answers_are_sampled_words(server: RehearsalServer) -> None:
    """Text is readable words with finite log probabilities, and not the likeliest token each time."""
    choice = server.complete(max_tokens=48, logprobs=1).json()["choices"][0]
    assert re.fullmatch(r"( [a-z]+|<\|im_end\|>)+", choice["text"])
    chosen = choice["logprobs"]["token_logprobs"]
    likeliest = [max(top.values()) for top in choice["logprobs"]["top_logprobs"]]
    assert all(math.isfinite(value) for value in chosen)
    assert any(a < b for a, b in zip(chosen, likeliest, strict=True))


@pytest.mark.parametrize("narrowed", [{"top_k": 2}, {"top_p": 0.02}, {"top_k": 9, "top_p": 0.5}])
def test_top_k_and_top_p_narrow_what_is_sampled(
    server: RehearsalServer, narrowed: dict[str, float]
) -> None:
    """Sampled from few tokens, the answer is among the likeliest at every position; the engine
    lives on."""
    answer = server.complete(logprobs=20, max_tokens=8, temperature=0.6, **narrowed)
    assert answer.status_code == 200
    block = answer.json()["choices"][0]["logprobs"]
    for own, top in zip(block["token_logprobs"], block["top_logprobs"], strict=True):
        assert sum(value > own for value in top.values()) < narrowed.get("top_k", 20)
    assert server.complete(max_tokens=2).status_code == 200


def test_chat_is_answered(server: RehearsalServer) -> None:
    """The chat template turns messages into a prompt that is answered."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "what is the water like?"}],
        "max_tokens": 16,
        "temperature": 1.0,
        "seed": 5,
        "ignore_eos": True,
    }
    answer = requests.post(f"{server.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"].strip()


def test_long_prompt_is_answered(server: RehearsalServer) -> None:
    """A prompt past 6,000 tokens is within the context and is answered."""
    answer = server.complete(prompt=" good water" * 3100, max_tokens=8)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] >= 6000


def test_requests_at_once_are_all_answered(server: RehearsalServer) -> None:
    """More requests than slots all get the text that they get alone."""
    alone = [server.complete(seed=seed).json()["choices"][0]["text"] for seed in range(2)]
    together: dict[int, requests.Response] = {}
    threads = [
        threading.Thread(target=lambda n=number: together.update({n: server.complete(seed=n % 2)}))
        for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number].status_code for number in range(6)] == [200] * 6
    first = {together[number].json()["choices"][0]["text"] for number in (0, 2, 4)}
    assert alone[0] in first


def test_hang_in_draft_hangs_while_the_trigger_is_there(
    server: RehearsalServer, trigger: Path
) -> None:
    """With the trigger a completion hangs under a healthy /health; without it the same one ends."""
    trigger.touch()
    try:
        answers: list[requests.Response] = []
        asking = threading.Thread(target=lambda: answers.append(server.complete()))
        asking.start()
        asking.join(_HUNG_FOR)
        assert asking.is_alive()
        assert server.health() == 200
    finally:
        trigger.unlink()
    asking.join(120)
    assert [answer.status_code for answer in answers] == [200]


def test_processes_are_found_by_title(server: RehearsalServer) -> None:
    """Engine and worker are processes of their own, so that drills can stop or kill them."""
    assert len({server.pid_of(ENGINE_CORE), server.pid_of(WORKER), server.process.pid}) == 3


def test_the_engine_sleeps_while_its_worker_works(server: RehearsalServer) -> None:
    """It takes a small part of the CPU time that the worker takes, where vLLM's own takes as much."""
    engine, worker = (psutil.Process(server.pid_of(title)) for title in (ENGINE_CORE, WORKER))
    before = [sum(process.cpu_times()[:2]) for process in (engine, worker)]
    assert server.complete(max_tokens=64).status_code == 200
    after = [sum(process.cpu_times()[:2]) for process in (engine, worker)]
    engines, workers = (late - early for early, late in zip(before, after, strict=True))
    assert engines < workers / 2


def test_each_process_says_for_itself_what_is_said_once(server: RehearsalServer) -> None:
    """Its lines carry its own name, though it was forked from another that has said the same."""
    once = r"^\((\w+) pid=\d+\) WARNING .*Enforce eager set"
    said = re.findall(once, server.log_text(), re.MULTILINE)
    assert sorted(said) == ["APIServer", "EngineCore", "Worker"]


# The last test of the shared server: it ends it.
def test_a_stop_cuts_no_answer_off_and_leaves_no_process(server: RehearsalServer) -> None:
    """The wait before a stop ends with the last answer. SIGTERM lets what runs end all the same,
    and then the whole server ends with exit code 0."""
    server.remember_family()
    beside, told = Client(f"http://127.0.0.1:{free_port()}"), list[str]()
    with ThreadPoolExecutor() as clients:
        first = clients.submit(server.complete, max_tokens=48)
        until(lambda: requests_running(server) > 0)
        waited = idle.wait(
            Client(server.url), beside, at_least_s=0, budget_s=PATIENCE_S, say=told.append
        )
        assert waited[0] == idle.IDLE and told[0] == "waiting: 1 running, 0 waiting"
        # Few tokens: the profile's shutdown-timeout is for an idle machine.
        second = clients.submit(server.complete, max_tokens=8, stream=True)
        until(lambda: requests_running(server) > 0 or second.done())
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_exit(120) == 0
    assert first.result().json()["usage"]["completion_tokens"] == 48
    assert second.result().text.endswith("data: [DONE]\n\n")
    assert server.survivors(within_s=PATIENCE_S) == []


def requests_running(server: RehearsalServer) -> float:
    """What /metrics says of the present."""
    seen = exposition.parse(requests.get(f"{server.url}/metrics", timeout=30).content)
    assert isinstance(seen, exposition.Exposition)
    return sum(e.running for e in seen.engines)


def test_interrupted_or_stopped_server_leaves_no_process(tmp_path: Path) -> None:
    """Ctrl-C while the models load ends everything; so does the helper with a stopped engine."""
    with RehearsalServer(tmp_path / "log", wait=False, grace_s=3.0) as starting:
        wait_for_log(starting, "Initializing a V1 LLM engine")
        engine = starting.pid_of(ENGINE_CORE)
        starting.remember_family()
        psutil.Process(engine).suspend()
    assert starting.survivors(within_s=PATIENCE_S) == []


def wait_for_log(server: RehearsalServer, text: str) -> None:
    """Return once the log holds ``text``."""
    until(
        lambda: text in server.log_text() or server.process.poll() is not None, why=server.log_end
    )
    assert text in server.log_text(), server.log_end()


def test_raise_in_draft_ends_the_engine(tmp_path: Path) -> None:
    """The server gets ready; the first request fails, and the engine is dead for good."""
    with RehearsalServer(tmp_path / "log", fault="raise-in-draft") as server:
        assert failed(server)
        # a slow answer is none: dead is who says so, or is gone
        until(
            lambda: server.health() == 503 or server.process.poll() is not None, why=server.log_end
        )
        assert "rehearsal fault raise-in-draft" in server.log_text()


def failed(server: RehearsalServer) -> bool:
    """Whether a completion is answered with a server error, or the connection is closed on it."""
    try:
        return server.complete().status_code >= 500
    except requests.ConnectionError:
        return True


def refused_by_the_gate(server: RehearsalServer) -> list[str]:
    """The reasons of the health service's first failed round on a real server."""
    profile = recipe.load().profile("rehearsal")
    client, policy = Client(server.url), Policy(profile.health, MODEL)
    runner = InlineRunner(Generator(client, policy))
    loop = Loop(client, policy, runner=runner, say=lambda _: None)
    until = time.monotonic() + _REFUSED_WITHIN_S
    while not (memory := loop.turn().memory).gate.failures:
        assert memory.state in (State.LOADING, State.SMOKE)
        assert time.monotonic() < until, loop.snapshot.verdict.line
        time.sleep(loop.next_look_s())
    return [note.code for note in loop.snapshot.verdict.notes]


def test_nan_weights_answer_with_nothing(tmp_path: Path) -> None:
    """NaN weights: /health is 200, a request with logprobs is a 400 that says NaN, drafts are vain."""
    with RehearsalServer(tmp_path / "log", fault="nan-weights") as server:
        asked = server.complete(logprobs=1)
        assert asked.status_code == 400
        assert "Out of range float values are not JSON compliant" in asked.text
        plain = server.complete()
        assert plain.status_code == 200
        assert plain.json()["choices"][0]["text"] == ""
        counters = server.counters()
        assert counters["drafts_total"] > 0
        assert counters["accepted_tokens_total"] == 0
        assert refused_by_the_gate(server) == ["numerics.nan", "gate.failed"]
        assert server.health() == 200


def test_dead_lm_head_gives_constant_logprobs(tmp_path: Path) -> None:
    """A dead lm_head: /health is 200, every log probability is that of a uniform guess."""
    with RehearsalServer(tmp_path / "log", fault="dead-lm-head") as server:
        answer = server.complete(logprobs=1)
        assert answer.status_code == 200
        logprobs = answer.json()["choices"][0]["logprobs"]["token_logprobs"]
        assert logprobs == pytest.approx([-math.log(len(VOCABULARY))] * len(logprobs), abs=1e-4)
        assert refused_by_the_gate(server) == ["numerics.constant", "gate.failed"]
        assert server.health() == 200
