"""`unstuck compare OLD NEW [ARGS]`: where two versions of a script first differ, and which of them learns better."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unstuck.cli import common, trying
from unstuck.cli.scripts import require_script
from unstuck.cli.verbs.run import split_arguments

if TYPE_CHECKING:
    import argparse

    from unstuck.diagnose.compare import Version
    from unstuck.findings.results import Experiment

HELP = "run two versions of a script: where do they first differ, and which is better?"
GROUP = "experiment"

DESCRIPTION = f"""Run two versions of a script under the same seeds and compare them tensor by tensor: the step and
the module at which they first differ, by how much, and which of them ends at the lower loss.

OLD and NEW are files, or files of a git revision: HEAD~3:train.py. Both run in this directory, and
ARGS are passed to both.

{trying.IN_TRIALS}"""
EPILOG = """exit codes:
  0   they are the same, or the new version is not worse
  1   the new version ends at a higher loss with every seed
  2   wrong usage, or a script that cannot be run
  3   an optional dependency is missing
"""


def main(arguments: Sequence[str]) -> int:
    """Compare, then report."""
    usage = "unstuck compare [options] OLD NEW [ARGS ...]"
    parser = common.verb_parser("compare", DESCRIPTION, usage, EPILOG)
    trying.add_options(parser, "5m")
    split = split_arguments(arguments, trying.WITH_VALUE)
    options = parser.parse_args(split.ours)
    if split.as_module or split.target is None or not split.theirs:
        parser.error("name two scripts, such as: unstuck compare old.py train.py, or HEAD~1:train.py train.py")
    for name in (split.target, split.theirs[0]):
        if os.path.exists(name) or ":" not in name:
            require_script(name, otherwise="write REVISION:FILE for one of git's.")
    common.require_torch("compare")
    common.check_output(options.output)
    from unstuck.trials.interrupts import Interrupts

    old, new, *passed = (split.target, *split.theirs)
    folder = trying.new_folder(split._replace(target=new.rpartition(":")[2]))
    # Not below `.unstuck`, which trials do not see.
    with Interrupts() as interrupts, tempfile.TemporaryDirectory(prefix="unstuck-revision-") as files:
        try:
            versions = [_version(name, Path(files, side), passed) for name, side in ((old, "old"), (new, "new"))]
            done = _compared(versions, folder, options)
        except KeyboardInterrupt:
            raise common.Stop("interrupted before both versions had run.", interrupts.exit_code) from None
        return _published(done, options)


def _version(name: str, folder: Path, passed: Sequence[str]) -> Version:
    from unstuck.diagnose.compare import Version
    from unstuck.trials.runner import Program

    revision, _, path = name.partition(":")
    target = name if os.path.exists(name) else _checked_out(revision, path, folder)
    return Version(name, Program(target, tuple(passed)))


def _checked_out(revision: str, path: str, folder: Path) -> str:
    """All files of a revision, in a folder of ours; the path of the script there."""
    prefix = _git("rev-parse", "--show-prefix").decode(errors="surrogateescape").strip()
    root = _git("rev-parse", "--show-toplevel").decode(errors="surrogateescape").strip()
    try:
        archive = _git("-C", root, "archive", "--format=tar", f"{revision}^{{commit}}")
    except common.Stop:
        raise common.Stop(f"git knows no revision {revision} here; list some with: git log --oneline") from None
    import io

    folder.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            try:
                files.extract(member, folder, filter="data")
            except tarfile.FilterError:  # such as a link that leads out of it
                continue
    for candidate in (folder / prefix / path, folder / path):
        if candidate.is_file():
            return str(candidate)
    raise common.Stop(f"revision {revision} has no file {path}; paths are those of then, from here or from the root.")


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], check=True, capture_output=True).stdout
    except FileNotFoundError:
        raise common.Stop("git is not installed, so that a revision cannot be read; name two files.") from None
    except subprocess.CalledProcessError as error:
        message = (error.stderr.decode(errors="replace").strip().splitlines() or ["it failed"])[-1]
        raise common.Stop(f"git says: {message}") from None


def _compared(versions: Sequence[Version], folder: Path, options: argparse.Namespace) -> Experiment:
    from unstuck.diagnose.compare import compare
    from unstuck.diagnose.script import NoRun
    from unstuck.trials.context import NoTime

    with trying.Progress(sys.stderr, options.budget, quiet=options.quiet) as progress:
        try:
            return compare(versions[0], versions[1], folder, options.budget, progress.tell, progress.watch)
        except NoRun as error:
            raise common.Stop(str(error)) from None
        except NoTime as error:
            raise common.Stop(
                f"running both versions takes about {error.needed:.0f} s, and {error.left:.0f} s are left; "
                "give it more with --budget"
            ) from None


def _published(done: Experiment, options: argparse.Namespace) -> int:
    from unstuck.findings.results import ExperimentVerdict

    trying.publish(done, options)
    return common.FOUND if done.verdict is ExperimentVerdict.WORSE else common.CLEAN
