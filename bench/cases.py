"""How good `unstuck diagnose` is: on the broken scripts of tests/cases, and on their fixed twins.

    python bench/cases.py [NAME ...] [--broken | --fixed] [--budget 60s]

A name may be the beginning of one, such as O04. Prints a row per script and the three shares that the project promises:
the true cause first (95 %), its remedy confirmed where it has one (90 %), no error on a fixed twin (all).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CASES = Path(__file__).parents[1] / "tests" / "cases"


def main() -> int:
    options = _options()
    wanted = [case for case in sorted(CASES.glob("[A-Z]*")) if not options.names or case.name.startswith(options.names)]
    kinds = ["broken", "fixed"] if options.broken == options.fixed else ["broken" if options.broken else "fixed"]
    first = confirmed = provable = clean = 0
    for case in wanted:
        for kind in kinds:
            report, seconds = _diagnosed(case / f"{kind}.py", options.budget)
            row = _row(case.name.split("_")[0], kind, report)
            print(f"{case.name:<30} {kind:<6} {seconds:5.1f} s  {row['text']}", flush=True)
            first += row["first"]
            provable += row["provable"]
            confirmed += row["confirmed"]
            clean += row["clean"]
    if "broken" in kinds:
        print(
            f"true cause first: {first} of {len(wanted)}; confirmed where first and provable: {confirmed} of {provable}"
        )
    if "fixed" in kinds:
        print(f"fixed twins without an error: {clean} of {len(wanted)}")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--broken", action="store_true", help="only the broken ones")
    parser.add_argument("--fixed", action="store_true", help="only the fixed twins")
    parser.add_argument("--budget", default="2m")
    options = parser.parse_args()
    options.names = tuple(options.names)
    return options


def _diagnosed(script: Path, budget: str) -> tuple[dict, float]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(script.read_text(encoding="utf-8"), encoding="utf-8")
        command = [sys.executable, "-m", "unstuck", "diagnose", "--json", "--quiet", "--budget", budget, "train.py"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    try:
        return json.loads(done.stdout), time.monotonic() - began
    except json.JSONDecodeError:
        return {"failed": (done.stderr.strip().splitlines() or ["?"])[-1]}, time.monotonic() - began


def _row(code: str, kind: str, report: dict) -> dict:
    if "failed" in report:
        return {"text": f"FAILED {report['failed']}", "first": 0, "provable": 0, "confirmed": 0, "clean": 0}
    proofs = {proof["code"]: proof["verdict"] for proof in report["proofs"]}
    found = [
        f"{d['code']}{'' if d['severity'] == 'error' else '?'}"
        for d in report["diagnoses"]
        if d["severity"] != "advice"
    ]
    tried = ", ".join(f"{proved} {verdict}" for proved, verdict in proofs.items())
    done = ", ".join(f"{item['name']} {item['verdict']}" for item in report["experiments"])
    is_first = report["principal"] == code
    mark = ("ok " if is_first else "-- ") if kind == "broken" else ("ok " if not report["counts"]["error"] else "-- ")
    return {
        "text": f"{mark}{' '.join(found) or 'nothing'} | {tried or 'nothing tried'} | {done}",
        "first": kind == "broken" and is_first,
        "provable": kind == "broken" and is_first and code in proofs,
        "confirmed": kind == "broken" and is_first and proofs.get(code) == "confirmed",
        "clean": kind == "fixed" and not report["counts"]["error"],
    }


if __name__ == "__main__":
    sys.exit(main())
