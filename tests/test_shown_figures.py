"""What a proof measured reaches the terminal of a run that passes."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]


def test_lines_of_a_passing_test_are_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures are shown although pytest keeps a passing test's output to itself."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makepyfile(
        """
        import pytest
        from tests.support.figures import show

        @pytest.fixture
        def measured(request):
            show(request, ["proof: 42"])

        def test_passes(measured):
            print("kept")
        """
    )
    output = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q").stdout
    output.fnmatch_lines(["proof: 42"])
    output.no_fnmatch_line("kept")
