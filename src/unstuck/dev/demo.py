"""The demo: find out why a training script does not learn, with proof."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from unstuck.dev.common import Refusal

SCRIPT = Path("examples/stuck/train.py")


def main(root: Path) -> int:
    """Run the demo. A finding is what it is for, so only the lack of one is a failure."""
    if not (root / SCRIPT).is_file():
        raise Refusal(f"{SCRIPT} is missing, and it is what the demo runs.")
    print(f"$ unstuck diagnose {SCRIPT}", flush=True)
    done = subprocess.run([sys.executable, "-m", "unstuck", "diagnose", str(SCRIPT)], cwd=root)
    return 0 if done.returncode == 1 else done.returncode or 1
