"""The reader of /metrics, on the real text of vLLM 0.27.1 and on noise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy import recipe
from healthcheck.client.answers import Answer, Failure, FailureKind
from healthcheck.client.exposition import EngineSample, Exposition, Speculation, parse, read

DATA = Path(__file__).parent / "data"
METRICS = recipe.load().vllm.metrics.read_text()
SIGSTOP = json.loads((DATA / "sigstop_metrics.json").read_text())


def parsed(text: str) -> Exposition:
    result = parse(text)
    assert isinstance(result, Exposition), result
    return result


def test_the_real_exposition_is_read() -> None:
    """Every needed number of a healthy server's /metrics is found; _created ones are not."""
    assert parsed(METRICS) == Exposition(
        1795957801.58,
        (EngineSample("0", 19, 16, 0, 0, 0.0, Speculation(4, 16, 15, (4, 4, 4, 3)), 2),),
    )


def test_a_stopped_engine_shows_the_same_trace_until_it_goes_on() -> None:
    """With EngineCore SIGSTOPped every needed number stands still; after SIGCONT one moves."""
    first, later, after = (
        parsed(SIGSTOP[k]).engines[0] for k in ("sweep", "sweep_later", "after_cont")
    )
    assert first.has_work
    assert first.trace == later.trace
    assert later.trace != after.trace


def test_a_saturated_server_shows_its_queue() -> None:
    """Running and waiting of the saturated capture are read."""
    engine = parsed((DATA / "saturated_metrics.txt").read_text()).engines[0]
    assert (engine.running, engine.waiting) == (4, 20)


def test_engines_are_told_apart() -> None:
    """Each engine label has a sample of its own, and their speculation adds up."""
    text = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    result = parsed("\n".join(sorted(set(text.splitlines()), key=text.splitlines().index)))
    assert [e.engine for e in result.engines] == ["0", "1"]
    total = result.speculation()
    assert total is not None and total.drafts == 8


def test_a_server_without_a_draft_has_no_speculation() -> None:
    """Without a speculative config the series are absent, which is not the same as zero."""
    text = "\n".join(x for x in METRICS.splitlines() if "spec_decode" not in x)
    result = parsed(text)
    assert result.engines[0].speculation is None
    assert result.speculation() is None


def test_no_series_of_vllm_is_an_exposition_without_engines() -> None:
    """With --disable-log-stats there is text and no engine in it."""
    assert parsed("python_info 1.0\n").engines == ()


@pytest.mark.parametrize(
    "text",
    [
        'vllm:num_requests_running{engine="0"} NaN\n',
        'vllm:num_requests_running{engine="0"} -1\n',
        'vllm:num_requests_running{engine="0"} +Inf\n',
        'vllm:num_requests_running{engine="0"\n',
        "vllm:num_requests_running\n",
        'vllm:num_requests_running{engine="0"} many\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="x"} 1\n',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="99999"} 1\n',
        'vllm:spec_decode_num_drafts_total{engine="0"} 1.7e308\n',
        'vllm:spec_decode_num_drafts_total{engine="0"} 1e-308\n',
        'vllm:num_requests_running{engine="0"} 0.5\n',
        f'vllm:num_requests_running{{engine="{"1" * 5000}"}} 0\n',
        f'vllm:num_requests_running{{engine="{"1" * 100}"}} 0\n',
        "".join(f'vllm:num_requests_running{{engine="{i}"}} 0\n' for i in range(2049)),
    ],
)
def test_nonsense_is_a_failure(text: str) -> None:
    """A number that cannot be is malformed, not zero."""
    result = parse(text)
    assert isinstance(result, Failure) and result.kind is FailureKind.MALFORMED


def test_the_largest_counters_add_up_to_a_number() -> None:
    """What is read is so bounded that no sum of it is beyond a float's range."""
    lines = [f'vllm:num_requests_running{{model_name="{i}"}} {2**53}\n' for i in range(2048)]
    assert parsed("".join(lines)).engines[0].running == 2.0**64


def test_a_long_exposition_of_others_is_read() -> None:
    """Series that are not needed cost a look, however many there are."""
    others = "".join(f'vllm:other{{engine="{i}"}} 0\n' for i in range(5000))
    assert len(parsed(others + METRICS).engines) == 1


def test_an_error_page_is_a_failure() -> None:
    """A status other than 200 is no exposition, whatever its body."""
    result = read(Answer(500, METRICS.encode()))
    assert isinstance(result, Failure)
    failure = Failure(FailureKind.TIMEOUT)
    assert read(failure) is failure


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "vllm:num_requests_running",
                    "vllm:spec_decode_num_drafts_total",
                    "vllm:spec_decode_num_accepted_tokens_per_pos_total",
                    "process_start_time_seconds",
                ]
            ),
            st.text(alphabet='{}="\\,# abc012\n', max_size=30),
        ),
        max_size=8,
    )
)
def test_broken_lines_of_needed_families_are_read_without_an_exception(
    lines: list[tuple[str, str]],
) -> None:
    """Broken labels and values of the very families that are read raise nothing."""
    assert isinstance(parse("\n".join(a + b for a, b in lines)), Exposition | Failure)


@given(st.integers(0, len(METRICS)), st.integers(0, 40))
def test_a_cut_exposition_is_read_without_an_exception(at: int, length: int) -> None:
    """Bytes missing anywhere raise nothing."""
    assert isinstance(parse(METRICS[:at] + METRICS[at + length :]), Exposition | Failure)
