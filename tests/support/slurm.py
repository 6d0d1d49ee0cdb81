"""A Slurm of one node, out of Debian's packages, with its state in a folder of its own.

Real slurmctld, slurmd and commands; without munge, cgroups, accounting and cards.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from deploy.rehearsal.supervisor import free_port
from tests.support import tools
from tests.support.waiting import PATIENCE_S, until

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15")
LIBRARIES = "usr/lib/x86_64-linux-gnu"

CONF = """\
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
PluginDir={plugins}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=100
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@dataclass(frozen=True)
class OneNode:
    """The cluster: `environ` is what its commands need, over a user's own."""

    folder: Path
    environ: Mapping[str, str]

    def run(self, *command: str, **environ: str) -> str:
        """Output of one of its commands, which must succeed."""
        ended = subprocess.run(
            command,
            env={**self.environ, **environ},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr + self.logs()
        return ended.stdout

    def submit(self, *arguments: str, **environ: str) -> str:
        """The number of a new job."""
        return self.run("sbatch", "--parsable", *arguments, **environ).strip()

    def show(self, job: str) -> dict[str, str]:
        """What the controller says of a job, by field."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(re.findall(r"(\w+)=(\S*)", shown))

    def until(self, job: str, *states: str) -> dict[str, str]:
        """Wait for one of the states; what is said of the job then."""
        return until(
            lambda: self.show(job),
            good=lambda shown: shown["JobState"] in states,
            why=lambda: self.logs(),
        )

    def logs(self) -> str:
        """The ends of all that was written, for a failure."""
        files = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"--- {f.name}\n{f.read_text()[-3000:]}" for f in files)


def installed() -> Path:
    """The folder of the unpacked packages; skips the test where they cannot be had."""
    made = tools.unpacked("slurm", *PACKAGES)
    if made is None:
        line = f"slurm is not installed: {tools.INSTALL['slurm']}"
        pytest.fail(line) if os.environ.get("CI") == "true" else pytest.skip(line)
    return made


def environment(made: Path) -> dict[str, str]:
    """The environment in which its commands are found and find their libraries."""
    libraries = made / LIBRARIES
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
        "PATH": f"{made / 'usr/bin'}{os.pathsep}{os.environ['PATH']}",
    }


def configured(made: Path, folder: Path) -> Path:
    """The configuration of a cluster whose state is in `folder`."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    conf.write_text(
        CONF.format(
            host=socket.gethostname().split(".")[0],
            controller=free_port(),
            node=free_port(),
            user=getpass.getuser(),
            plugins=made / LIBRARIES / "slurm-wlm",
            folder=folder,
        )
    )
    return conf


def usage(program: str) -> str:
    """What a command says of itself, for which it wants a configuration."""
    made = installed()
    with tempfile.TemporaryDirectory() as folder:
        environ = {**environment(made), "SLURM_CONF": str(configured(made, Path(folder)))}
        command = [made / "usr/bin" / program, "--help"]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@contextlib.contextmanager
def one_node(folder: Path) -> Iterator[OneNode]:
    """A cluster that runs."""
    made = installed()
    conf = configured(made, folder)
    environ = {**environment(made), "SLURM_CONF": str(conf)}
    controller = [made / "usr/sbin/slurmctld-wlm", "-D", "-f", conf]
    node = [made / "usr/sbin/slurmd-wlm", "-D", "-f", conf, "-d", made / "usr/sbin/slurmstepd-wlm"]
    with contextlib.ExitStack() as stack:
        for command in (controller, node):
            daemon = subprocess.Popen(
                command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(daemon.wait, PATIENCE_S)
            stack.callback(daemon.terminate)
        cluster = OneNode(folder, environ)

        def idle() -> bool:
            told = subprocess.run(
                ["sinfo", "-h", "-o", "%t"],
                env=environ,
                capture_output=True,
                text=True,
                check=False,
            )
            return told.stdout.strip() == "idle"

        until(idle, why=cluster.logs)
        yield cluster
        subprocess.run(["scancel", "--user", getpass.getuser()], env=environ, check=False)
        until(idle, why=cluster.logs)
