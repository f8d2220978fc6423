"""Nothing leaves the machine: in a network of its own, with a way out that counts, a command sends no packet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 3), nn.Softmax(dim=1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(40):
    loss = nn.functional.cross_entropy(model(torch.randn(16, 8)), torch.randint(3, (16,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
# With a default route and a neighbour who needs no answer, every packet is really sent. Nobody asks for IPv6, whose
# kernel would greet its neighbours by itself.
NETWORK = """
set -e
for name in all default; do echo 1 > /proc/sys/net/ipv6/conf/$name/disable_ipv6 || true; done
ip link set lo up
ip link add out0 type dummy 2> /dev/null || ip link add out0 type veth peer name out1
ip link set out1 up 2> /dev/null || true
ip addr add 10.99.0.1/24 dev out0
ip link set out0 up
ip route add default via 10.99.0.2 dev out0
ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:01 dev out0 nud permanent
sent() { cat /sys/class/net/$1/statistics/tx_packets; }
mount -t sysfs none /sys  # that of this network
before=$(sent out0) before_lo=$(sent lo)
set +e
"$@" > output.txt 2>&1
echo "code $?"
echo "out $(($(sent out0) - before)) lo $(($(sent lo) - before_lo))"
"""
ASK = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 9))"


def counted(*command: str) -> tuple[int, int, int]:
    """The exit code of a command, and how many packets it has sent to others and to this machine."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare and ip")
    alone = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
    done = subprocess.run(
        [*alone, "bash", "-c", NETWORK, "bash", sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode:
        pytest.skip(f"a network of its own is refused here: {done.stderr.strip()}")
    _, code, _, out, _, own = done.stdout.split()
    return int(code), int(out), int(own)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def test_the_count_is_true() -> None:
    assert counted("-c", ASK) == (0, 1, 0)
    assert counted("-c", ASK.replace("192.0.2.1", "127.0.0.1"))[2] > 0


@pytest.mark.parametrize(
    "words",
    [
        "lint train.py",
        "run --html page.html train.py",
        pytest.param("diagnose --budget 30s --html page.html train.py", marks=pytest.mark.slow),
        pytest.param("doctor", marks=pytest.mark.slow),
    ],
)
def test_no_packet_is_sent(words: str) -> None:
    code, out, own = counted("-m", "unstuck", *words.split())
    assert code == (0 if words == "doctor" else 1), Path("output.txt").read_text()  # the mistake was found
    assert (out, own) == (0, 0)
