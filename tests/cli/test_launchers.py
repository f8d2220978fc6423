"""Under a launcher the exit code of a rank belongs to the user: a finding must not end the work of other ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import BROKEN, Unstuck
from unstuck.cli.launchers import Rank, rank_among

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}
ACCELERATE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALNRANKS": "2"}
SRUN = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}
DEEPSPEED = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1", "CROSS_SIZE": "1"}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, Rank("torchrun", 0, 1, 1)),
        ({**TORCHRUN, "WORLD_SIZE": "4", "RANK": "2"}, Rank("torchrun", 2, 4, 1)),
        ({**TORCHRUN, **ACCELERATE}, Rank("torchrun", 0, 1, 1)),
        ({**TORCHRUN, **SRUN}, Rank("torchrun", 0, 1, 1)),
        (ACCELERATE, Rank("accelerate launch", 0, 1, 1)),
        (OPEN_MPI, Rank("mpirun", 1, 4, 4)),
        ({**OPEN_MPI, **SRUN}, Rank("mpirun", 1, 4, 4)),
        (MPICH, Rank("mpirun", 1, 4, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, Rank("mpirun", 0, 2, None)),
        (SRUN, Rank("srun", 1, 2, None)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "1"}, Rank("srun", 1, 2, 2)),
        ({**SRUN, "SLURM_STEP_NUM_NODES": "2"}, Rank("srun", 1, 2, None)),
        (DEEPSPEED, Rank("deepspeed", 0, 1, 1)),
        (BY_HAND, Rank("torch.distributed", 1, 4, None)),
    ],
)
def test_launchers_are_known_by_their_variables(variables: Mapping[str, str], expected: Rank) -> None:
    assert rank_among(variables) == expected


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": "0"},
        {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"},  # DDP code tried alone
        {"RANK": "0", "WORLD_SIZE": "4"},
        {**BY_HAND, "RANK": "4"},
        {**BY_HAND, "RANK": "one"},
        {"ACCELERATE_MIXED_PRECISION": "bf16"},  # set by hand
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"},  # in an sbatch script
        {**SRUN, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"},  # salloc's shell
        {**SRUN, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "4711"},  # srun --pty bash
    ],
)
def test_a_plain_run_is_not_taken_for_a_rank(variables: Mapping[str, str]) -> None:
    assert rank_among(variables) is None


@pytest.mark.slow
def test_a_plain_run_still_fails_on_findings(unstuck: Unstuck, broken: Path) -> None:
    assert unstuck("run", str(broken), RANK="0").returncode == 1


def test_findings_do_not_change_the_exit_code_of_a_rank(unstuck: Unstuck, broken: Path) -> None:
    done = unstuck("run", str(broken), **TORCHRUN)
    assert done.returncode == 0
    assert "O12" in done.stderr
    assert "findings do not change the exit code under torchrun" in done.stderr


@pytest.mark.slow
def test_the_only_rank_fails_when_asked_to(unstuck: Unstuck, broken: Path) -> None:
    assert unstuck("run", "--fail-on", "error", str(broken), **TORCHRUN).returncode == 1


@pytest.mark.slow
def test_where_other_ranks_cannot_be_seen_findings_do_not_count_and_that_is_said(
    unstuck: Unstuck, broken: Path
) -> None:
    done = unstuck("run", "--fail-on", "error", str(broken), **TORCHRUN | {"WORLD_SIZE": "2"})
    assert done.returncode == 0
    command = done.stderr.partition("When the job has ended: unstuck ")[2].split()
    assert unstuck(*command).returncode == 1


@pytest.mark.slow
def test_the_code_of_the_script_stays(unstuck: Unstuck) -> None:
    Path("train.py").write_text(BROKEN + "raise SystemExit(7)\n")
    assert unstuck("run", "--fail-on", "error", "train.py", **TORCHRUN).returncode == 7


@pytest.mark.slow
def test_stop_on_ends_a_rank_as_it_ends_a_run(unstuck: Unstuck, broken: Path) -> None:
    Path("train.py").write_text(BROKEN.replace("range(30)", "range(100_000)"))
    assert unstuck("run", "--stop-on", "error", "train.py", **TORCHRUN).returncode == 4


def test_a_later_rank_is_brief_and_says_who_it_is(unstuck: Unstuck, broken: Path) -> None:
    done = unstuck("run", "--html", "page.html", str(broken), **SRUN)
    assert done.returncode == 0
    report, page = done.stderr.splitlines()
    assert report.startswith("[rank 1] train.py:11:16: O12 error")
    assert page == f"[rank 1] unstuck: the page is {Path('page.rank1.html').absolute()}"
    assert [path.name for path in Path().glob("*.html")] == ["page.rank1.html"]
    assert next(Path(".unstuck/runs").iterdir()).name.endswith("-train-rank1")


JOB = (
    BROKEN
    + """
import os, sys, time, atexit
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
rank = dist.get_rank()
if "late" in sys.argv[1:]:
    atexit.register(lambda: (time.sleep(1.5), open(f"exited-{rank}", "w")))
if rank == 1:
    for _ in range(15):  # rank 0 has ended by now
        time.sleep(0.2)
        torch.nn.Linear(3, 1)(torch.randn(4, 3)).sum().backward()
    torch.save(model.state_dict(), "model.pt")
"""
)


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "UNSTUCK_RAISE"}
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--local-addr", "127.0.0.1"]
    return subprocess.run(
        [sys.executable, *launcher, "-m", "unstuck", "run", *words],
        env={**variables, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_under_torchrun_a_finding_does_not_cost_the_model_of_another_rank() -> None:
    Path("train.py").write_text(JOB)
    done = torchrun("train.py")
    assert done.returncode == 0, done.stderr
    assert Path("model.pt").exists()
    assert "O12" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other ranks are looked for in /proc")
def test_with_fail_on_the_job_fails_after_all_ranks_have_ended() -> None:
    Path("train.py").write_text(JOB)
    done = torchrun("--fail-on", "error", "train.py", "late")
    assert done.returncode == 1, done.stderr
    assert Path("model.pt").exists()
    assert sorted(path.name for path in Path().glob("exited-*")) == ["exited-0", "exited-1"]


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other ranks are looked for in /proc")
def test_a_rank_that_waits_does_not_outlive_one_that_crashes() -> None:
    Path("train.py").write_text(JOB.replace('torch.save(model.state_dict(), "model.pt")', "raise SystemExit(3)"))
    began = time.monotonic()
    done = torchrun("--fail-on", "error", "train.py")
    assert done.returncode == 1
    assert "exitcode  : 3" in done.stderr
    assert time.monotonic() - began < 60


GIVES_UP = """
import ctypes, sys
from unstuck.cli.jobs import Job

class Options:
    fail_on, quiet, format, output, html = "error", False, "text", None, None

class Busy:
    def wait(self):
        return False

job = Job(None, Options)
job._must_wait, job._peers = True, Busy()
text, raw = open("text.txt", "w"), open("raw.bin", "wb")
text.write("said")
raw.write(b"said")
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
native = ctypes.c_void_p(libc.fopen(b"native.txt", b"w"))
libc.fputs(b"said", native)
print("printed", end="")
job._wait()
"""


def test_a_rank_that_gives_up_waiting_loses_nothing_that_was_written() -> None:
    done = subprocess.run([sys.executable, "-c", GIVES_UP], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "other ranks were still running" in done.stderr
    assert done.stdout == "printed"
    assert [Path(name).read_text() for name in ("text.txt", "raw.bin", "native.txt")] == ["said"] * 3


SPAWNED = """
import torch.multiprocessing as mp
import torch

def work(rank):
    torch.manual_seed(rank)
    layer = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for step in range(20):
        loss = torch.nn.functional.cross_entropy(layer(torch.randn(8, 4)).softmax(1), torch.randint(3, (8,)))
        loss.backward()  # gradients pile up
        optimizer.step()
    torch.save(layer.state_dict(), f"model-{rank}.pt")

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


@pytest.mark.slow
def test_processes_that_a_script_spawns_end_as_they_would(unstuck: Unstuck) -> None:
    Path("train.py").write_text(SPAWNED)
    done = unstuck("run", "train.py")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path().glob("model-*.pt")) == ["model-0.pt", "model-1.pt"]
