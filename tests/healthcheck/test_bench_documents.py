"""What `make bench` writes: the JSON, the plots, the tables and the page."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from tests.bench import __main__ as command
from tests.bench import commands, document, figure, svg
from tests.bench.figure import BenchError, Figure, Goal, Matrix, Strip

SVG = "{http://www.w3.org/2000/svg}"
STRIP = Figure(
    name="strip",
    title="Some times <of> it",
    how="How & where.",
    columns=("a", "b|c"),
    rows=(("1", "x|y"), ("2", "two\nlines")),
    plot=Strip("time", "s", (("one", (1.0, 2.0, 4.0)), ("none", ())), goal=3.0, goal_label="goal"),
    goals=(Goal("<= 3 s", "2 s", True), Goal("all", "1 of 2", False), Goal("?", "-", None)),
    notes=("A note.",),
    raw={"times": [1.0, 2.0, 4.0]},
    machine="somewhere",
)
MATRIX = Figure(
    name="matrix",
    title="Who sees what",
    how="How.",
    columns=("case", "p"),
    rows=(("stop", "3 s"),),
    plot=Matrix(("p",), (("stop", (("3 s", "good"),)), ("start", (("missed", "bad"),)))),
)


def shapes(one: Figure, tag: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(svg.draw(one)).iter(SVG + tag))


def words(one: Figure) -> list[str]:
    return [t.text or "" for t in shapes(one, "text")]


def test_results_come_back_as_they_were_saved(tmp_path: Path) -> None:
    """Every figure read from the file is the figure that was written."""
    path = tmp_path / "results.json"
    figure.save(path, {"strip": STRIP, "matrix": MATRIX})
    assert figure.load(path) == {"strip": STRIP, "matrix": MATRIX}


def test_no_results_yet(tmp_path: Path) -> None:
    """A first run starts from nothing."""
    assert figure.load(tmp_path / "results.json") == {}


@pytest.mark.parametrize("text", ["", "{}", '{"schema": 1, "figures": {"a": {}}}', "[1]"])
def test_a_foreign_file_is_refused(tmp_path: Path, text: str) -> None:
    """What is no result file is refused in one line that names it."""
    path = tmp_path / "results.json"
    path.write_text(text)
    with pytest.raises(BenchError, match=r"results\.json: .*delete it") as refused:
        figure.load(path)
    assert "\n" not in str(refused.value)


def test_a_foreign_file_ends_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says so on stderr, exits 2 and leaves the file alone."""
    path = tmp_path / "figures/results.json"
    path.parent.mkdir()
    path.write_text('{"schema": 99}')
    assert command.main(["--render", "--out", str(path.parent)]) == 2
    assert capsys.readouterr().err.startswith("bench: ")
    assert path.read_text() == '{"schema": 99}'
    assert not (tmp_path / "FIGURES.md").exists()


def test_a_plot_has_a_dot_for_each_value_and_a_bar_for_each_median() -> None:
    """Positions follow the axis: the dot of the median stands at the end of its bar."""
    dots = shapes(STRIP, "circle")
    bars = [r for r in shapes(STRIP, "rect") if r.get("fill") == "var(--bar)"]
    assert len(dots) == 3
    assert len(bars) == 1
    end = float(bars[0].get("x", 0)) + float(bars[0].get("width", 0))
    x = [float(d.get("cx", 0)) for d in dots]
    assert x[1] == pytest.approx(end, abs=0.2)
    assert (x[2] - svg.LABEL) == pytest.approx(4 * (x[0] - svg.LABEL), abs=0.5)


def test_a_plot_names_its_axis_with_the_unit_and_says_what_is_missing() -> None:
    """A reader sees the unit, every label, the goal, and a row without values."""
    assert {"time (s)", "one", "none", "goal", "Some times <of> it"} <= set(words(STRIP))
    assert words(STRIP).count("none") == 2  # the label, and in place of a bar


def test_a_goal_stands_at_its_value() -> None:
    """The goal's line is between the dots below and above it."""
    line = next(x for x in shapes(STRIP, "line") if x.get("stroke") == "var(--goal)")
    x = [float(d.get("cx", 0)) for d in shapes(STRIP, "circle")]
    assert x[1] < float(line.get("x1", 0)) < x[2]


@pytest.mark.parametrize("one", [STRIP, MATRIX])
def test_a_plot_is_readable_on_light_and_dark(one: Figure) -> None:
    """Every colour is a name that both palettes define, and the page is painted below it."""
    text = svg.draw(one)
    light, dark = svg.STYLE.split("@media (prefers-color-scheme: dark)")
    used = {part.split(")")[0] for part in text.split("var(")[1:]}
    assert used <= {name for name in used if f"{name}:" in light and f"{name}:" in dark}
    assert shapes(one, "rect")[0].get("fill") == "var(--paper)"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_matrix_has_a_coloured_cell_for_each_verdict() -> None:
    """Cells carry their word, and their mood as a colour."""
    fills = [r.get("fill") for r in shapes(MATRIX, "rect")[1:]]
    assert fills == ["var(--good)", "var(--bad)"]
    assert {"3 s", "missed", "stop", "start", "p"} <= set(words(MATRIX))


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 61.5), (0, 0.004), (0, 147_692), (0.0, 1.02), (5, 5)]
)
def test_axes_hold_their_values_in_few_round_steps(low: float, high: float) -> None:
    """Ticks are even, go from below the least to above the most, and are few enough to read."""
    ticks = svg.axis_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 9
    steps = {round(b - a, 9) for a, b in itertools.pairwise(ticks)}
    assert len(steps) == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (12.34, "12.3"), (0.989, "0.989"), (100.0, "100"), (20.0, "20"), (14968, "14,968")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """Three digits that count, and thousands set apart."""
    assert svg.number(value) == text


def test_a_table_keeps_its_columns() -> None:
    """A bar or a line break in a cell does not end the cell or the row."""
    lines = document.table(STRIP.columns, STRIP.rows).splitlines()
    assert lines == ["| a | b\\|c |", "|---|---|", "| 1 | x\\|y |", "| 2 | two lines |"]


def test_the_page_shows_every_figure(tmp_path: Path) -> None:
    """Plots, tables, goals met, missed and open, notes, and where it was measured."""
    page = tmp_path / "FIGURES.md"
    document.write({"strip": STRIP, "matrix": MATRIX}, tmp_path / "plots", page, ("matrix",))
    text = page.read_text()
    for name in ("strip", "matrix"):
        assert f"(plots/{name}.svg)" in text
        assert (tmp_path / f"plots/{name}.svg").exists()
    assert text.index("Who sees what") < text.index("Some times")
    assert "| <= 3 s | 2 s | met |" in text
    assert "| all | 1 of 2 | **missed** |" in text
    assert "- A note." in text
    assert "*somewhere*" in text


def test_the_documents_are_those_of_the_results() -> None:
    """What stands in the repository was written from the results beside it, not by hand."""
    known = figure.load(command.FOLDER / command.RESULTS)
    assert known, "make bench has not been run"
    page = command.FOLDER.parent / command.PAGE
    assert page.read_text() == document.render(known, command.FOLDER.name, command.ORDER)
    for name, one in known.items():
        assert (command.FOLDER / f"{name}.svg").read_text() == svg.draw(one)
    assert {p.stem for p in command.FOLDER.glob("*.svg")} == set(known)


def test_results_say_where_they_were_measured() -> None:
    """Every figure in the repository names day, cores and load."""
    data = json.loads((command.FOLDER / command.RESULTS).read_text())
    for one in data["figures"].values():
        assert "cores" in one["machine"]
        assert "load" in one["machine"]


def test_figures_have_one_name_and_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure is in the page's order, and an unknown one is refused by exit code 2."""
    assert set(command.ORDER) == {*command.COMMANDS, *command.ALONE, *command.REAL}
    with pytest.raises(SystemExit) as ended:
        command.main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "nothing" in capsys.readouterr().err


def test_each_command_is_held_against_its_goal() -> None:
    """By the median of its runs; the raw times stay."""
    times = iter([481.0, 170.0, 50.0, 90.0, 55.0, 19.0, 18.0, 30.0])
    (one,) = commands.measure(lambda _: next(times))
    assert [goal.met for goal in one.goals] == [False, True, True, True]
    assert one.raw["make smoke-test"] == [50.0, 90.0, 55.0]
    assert one.rows[2] == ("make smoke-test", "3", "55 s", "50, 90, 55")


def test_a_command_that_ends_otherwise_is_no_figure() -> None:
    """What should work and fails is one line with the end of what it said."""
    with pytest.raises(BenchError, match=r"no such thing: exit code 2; it ends: make\S*: .*no"):
        commands.run(commands.Command("no such thing", "no-such", 1.0))
    assert commands.run(commands.Command("meant to", "no-such", 1.0, fails=True)) > 0
