"""Stands where Apptainer would in a Slurm job: runs what a container would, on this host.

    apptainer run|exec OPTION... IMAGE [ARGUMENT...]

What the environment would be inside is made as Apptainer documents it for --cleanenv: nothing of the
host's but APPTAINERENV_ variables, without that prefix, and PATH. Paths inside are those that are
bound, so each is put back to the host's own where it is named. In place of the server's image its
launch.py runs with another server's program; in place of the health service's that service runs with
quick budgets. STAND_IN, a JSON file, has program, ports and recipe.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("--cleanenv", "--writable-tmpfs")
WITH_VALUE = ("--bind", "--home", "--pwd", "--env-file")
LAUNCH = """
import sys
from pathlib import Path
sys.path[:0] = [{docker!r}]
import launch
launch.ENTRYPOINT = Path({server!r})
sys.exit(launch.main(sys.argv[1:]))
"""


def main(arguments: list[str]) -> None:
    """Become the program that the image would run."""
    kind, *rest = arguments
    given: dict[str, list[str]] = {name: [] for name in WITH_VALUE}
    while rest[0].startswith("--"):
        option = rest.pop(0)
        if option in FLAGS:
            given[option] = []
        else:
            given[option].append(rest.pop(0))  # KeyError: no option that is known
    image, *words = rest
    assert given["--pwd"] == ["/opt/dspark-rocm"], "the image's WORKDIR is not taken over"
    assert set(FLAGS) <= set(given)
    settings = json.loads(Path(os.environ["STAND_IN"]).read_text("utf-8"))
    environ = {
        name.removeprefix("APPTAINERENV_"): value
        for name, value in os.environ.items()
        if name.startswith("APPTAINERENV_")
    }
    bound = [bind.split(":") for bind in (*given["--bind"], *given["--home"])]
    for source, *_ in bound:
        assert Path(source).exists(), f"--bind {source}: is not there"

    def outside(word: str) -> str:
        for source, inside, *_ in bound:
            if word == inside or word.startswith(inside + "/"):
                return source + word.removeprefix(inside)
        return word

    words = [outside(word) for word in words]
    environ = {name: outside(value) for name, value in environ.items()}
    port, beside = settings["server"], settings["health"]
    if image == "server.sif" and kind == "run":
        assert environ["ROCR_VISIBLE_DEVICES"] == settings["cards"]
        launch = LAUNCH.format(docker=str(ROOT / "docker"), server=settings["program"])
        command = ["-c", launch, "--", str(port), settings["starts"], "0", *words]
    else:
        assert (image, kind, words[:3]) == (
            "healthcheck.sif",
            "exec",
            ["python3", "-m", "healthcheck"],
        )
        command = [*words[1:]]
        target = ["--target", f"http://127.0.0.1:{port}"]
        if command[2] == "serve":
            command += [*target, "--port", str(beside), "--model", settings["model"]]
        elif command[2] == "idle":
            command += [*target, "--at-least", "0"]
        environ |= {"DSPARK_HEALTH_URL": f"http://127.0.0.1:{beside}"}
        environ |= {"DSPARK_RECIPE": settings["recipe"]}
    os.chdir(ROOT)
    path = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": bound[-1][0]}
    os.execve(sys.executable, [sys.executable, *command], {**path, **environ})


if __name__ == "__main__":
    main(sys.argv[1:])
