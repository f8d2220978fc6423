"""Trials run the user's script again and again: nothing of the user's changes, and the script finds what it reads."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest

from unstuck.capture.trial.isolation.outputs import Outputs
from unstuck.capture.trial.isolation.stage import Stage
from unstuck.interventions import StopAfter
from unstuck.trials.runner import Program, Runner, Variant

IMPORTS = "import os, shutil, stat, subprocess, sys, tempfile\nfrom pathlib import Path\n"
MANY = 60
BIG = b"0123456789abcdef" * 2**16 + b"and more than is copied"


def picture_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything in a folder: names, permissions, sizes, times, contents and where links lead. Not `.unstuck`."""
    seen: dict[str, tuple[object, ...]] = {}
    for here, folders, files in os.walk(folder):
        if ".unstuck" in folders:
            folders.remove(".unstuck")
        for name in [".", *folders, *files]:
            path = os.path.join(here, name)
            status = os.lstat(path)
            held: object = None
            if stat.S_ISLNK(status.st_mode):
                held = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                # Not even its owner may read the one without permissions, unless that is root.
                held = hashlib.md5(Path(path).read_bytes()).hexdigest() if os.access(path, os.R_OK) else None
            size = None if stat.S_ISDIR(status.st_mode) else status.st_size
            seen[path] = (status.st_mode, size, status.st_mtime_ns, status.st_nlink, held)
    return seen


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """A project among other things of the user's; `.unstuck` is there already."""
    world = tmp_path / "world"
    files = {
        "project/train.py": b"print('train')\n",
        "project/helper.py": b"NUMBER = 7\n",
        "project/pyproject.toml": b"[tool.x]\n",
        "project/log.txt": b"epoch 1\n",
        "project/best.pt": BIG,
        "project/runs/1/events": b"events",
        "project/runs/1/big.pt": BIG,
        "project/pkg/__init__.py": b"",
        "project/pkg/train.py": b"from . import part\n",
        "project/pkg/part.py": b"import importlib.resources\n",
        "project/pkg/words.txt": b"words",
        "project/sub dir/n\xc3\xa4me\nwith newline".encode("latin-1").decode(): b"odd",
        "data/train.csv": b"1,2\n",
        "out/old.txt": b"old",
        "scratch/runs/7/model.pt": BIG,
        "scratch/runs/7/small.txt": b"small",
        "home/.config/tool.ini": b"[a]\n",
    }
    for name, held in files.items():
        path = world / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(held)
    project = world / "project"
    (project / ".unstuck" / "trial").mkdir(parents=True)
    (project / "far").symlink_to(world / "scratch" / "runs")
    (project / "near").symlink_to("../data")
    (project / "latest.pt").symlink_to("best.pt")
    (project / "dangling").symlink_to("/nowhere/at/all")
    (project / "circle").symlink_to("circle")
    (world / "alias").symlink_to("project")
    os.mkfifo(project / "fifo")
    odd = os.fsencode(project) + b"/not-utf8-\xff"
    Path(os.fsdecode(odd)).write_bytes(b"bytes")
    (project / "secret").write_bytes(b"secret")
    (project / "secret").chmod(0)
    return world


def check(world: Path, code: str, *more: str, home: str = "project") -> None:
    """Run some code in a child process as a trial of the project would, and compare everything with how it was."""
    before = picture_of(world)
    said = world.parent / "said"
    child = os.fork()
    if child == 0:
        _perform(world, code, more, str(world / home), said)
    _, status = os.waitpid(child, 0)
    assert picture_of(world) == before
    assert status == 0, said.read_text()


def _perform(world: Path, code: str, more: tuple[str, ...], home: str, said: Path) -> None:
    status = 1
    try:
        output = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 2)
        os.environ["HOME"] = str(world / "home")
        (world.parent / "temporary").mkdir(exist_ok=True)
        os.environ["TMPDIR"], tempfile.tempdir = str(world.parent / "temporary"), None  # a trial has one of its own
        folder = str(world / "project" / ".unstuck" / "trial")
        stage = Stage(os.path.join(folder, "stage"), home)
        stage.build(*more)
        os.chdir(stage.here)
        outputs = Outputs(stage, folder)
        outputs.redirect()
        names = {"__file__": stage.here + "/train.py", "home": home, "stage": stage, "outputs": outputs}
        exec(compile(IMPORTS + code, "train.py", "exec"), {**names, "BIG": len(BIG)})
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


WRITES = {
    "a new file": "open('new.txt', 'w').write('x'); assert open('new.txt').read() == 'x'",
    "a small file anew": "open('log.txt', 'w').write('x'); assert open('log.txt').read() == 'x'",
    "the end of a small file": "open('log.txt', 'a').write('2'); assert open('log.txt').read() == 'epoch 1\\n2'",
    "a large file anew": "open('best.pt', 'wb').write(b'x'); assert Path('best.pt').read_bytes() == b'x'",
    "the end of a large file": "open('best.pt', 'ab').write(b'x'); assert os.path.getsize('best.pt') == BIG + 1",
    "into a large file": "f = open('best.pt', 'r+b'); f.write(b'xx'); f.close(); "
    "assert Path('best.pt').read_bytes()[:4] == b'xx23'",
    "exclusively": """
try: open('best.pt', 'x')
except FileExistsError: open('fresh', 'x').write('x')
else: raise SystemExit('made twice')""",
    "through a link to a file": "open('latest.pt', 'wb').write(b'x'); assert Path('best.pt').read_bytes() == b'x'",
    "a low-level file": "fd = os.open('best.pt', os.O_WRONLY); os.write(fd, b'x'); os.close(fd)",
    "through pathlib": "Path('best.pt').write_bytes(b'x'); Path('log.txt').write_text('y'); Path('best.pt').touch()",
    "through numpy": "import numpy; numpy.save('best.pt.npy', numpy.ones(3)); numpy.ones(3).tofile('best.pt'); "
    "m = numpy.memmap('runs/1/big.pt', mode='r+'); m[0] = 0; m.flush()",
    "by an absolute path": "p = home + '/best.pt'; open(p, 'ab').write(b'x'); "
    "assert open(p, 'rb').read()[-1:] == b'x'; "
    "assert Path('best.pt').read_bytes()[-1:] == b'x'",
    "a relative file, read by its absolute path": "open('a', 'w').write('x'); assert open(home + '/a').read() == 'x'; "
    "assert os.path.exists(home + '/a') and 'a' in os.listdir(home)",
    "by another name of the project": "p = os.path.dirname(home) + '/alias/log.txt'; open(p, 'w').write('x'); "
    "assert open(p).read() == open('log.txt').read() == 'x'",
    "in a parent": "open('../out/new.txt', 'w').write('x'); assert open('../out/new.txt').read() == 'x'; "
    "open('../out/old.txt', 'a').write('er'); assert open('../out/old.txt').read() == 'older'",
    "in a new folder of a parent": "os.makedirs('../made/deep', exist_ok=True); open('../made/deep/x', 'w').write('x')",
    "deep in an absolute folder": """
p = Path(home).parent / 'scratch/runs/7/small.txt'
p.write_text('x')
assert p.read_text() == 'x' and sorted(os.listdir(p.parent)) == ['model.pt', 'small.txt']
assert outputs.elsewhere == [str(p)]""",
    "deep behind a link": "open('far/7/small.txt', 'w').write('x'); open('far/7/model.pt', 'ab').write(b'x'); "
    "p = Path(home).parent / 'scratch/runs/7/small.txt'; assert p.read_text() == Path('far/7/small.txt').read_text()",
    "behind a relative link": "open('near/x', 'w').write('x'); assert open('../data/x').read() == 'x'",
    "through a dangling link": """
try: open('dangling', 'w')
except FileNotFoundError: pass
try: open('circle', 'w')
except OSError: pass""",
    "in the home folder": "p = os.path.expanduser('~/runs'); os.makedirs(p); open(p + '/x', 'w').write('x'); "
    "assert os.listdir(p) == ['x']; q = os.path.expandvars('$HOME/.config/tool.ini'); open(q, 'a').write('b'); "
    "assert open(q).read() == '[a]\\nb'",
    "beside the script": "p = Path(__file__).resolve().parent / 'out'; p.mkdir(); (p / 'x').write_text('x'); "
    "assert Path('out/x').exists()",
    "a folder that exists": "os.makedirs('runs/1', exist_ok=True); os.makedirs(home + '/runs/2'); "
    "assert sorted(os.listdir('runs')) == ['1', '2']",
    "a temporary file here": "t = tempfile.NamedTemporaryFile(dir='.', delete=False); t.write(b'x'); t.close(); "
    "os.replace(t.name, 'best.pt'); assert Path('best.pt').read_bytes() == b'x'",
    "atomically": "open('b.tmp', 'w').write('x'); os.replace(src='b.tmp', dst=home + '/best.pt'); "
    "assert open('best.pt').read() == 'x'",
    "a resumed checkpoint": "open('ck.pt', 'wb').write(b'1'); assert open('ck.pt', 'rb').read() == b'1'; "
    "os.rename('ck.pt', 'ck1.pt'); assert os.path.exists('ck1.pt') and not os.path.exists('ck.pt')",
    "with a changed directory": "os.chdir('runs/1'); open('x', 'w').write('x'); open('big.pt', 'wb').write(b'x'); "
    "os.chdir(home); open('y', 'w').write('y'); assert os.path.exists('runs/1/x'); "
    "os.chdir('../scratch/runs/7'); open('z', 'w').write('z'); subprocess.run(['touch', 'w'], check=True)",
    "in a program of its own": "subprocess.run(['touch', 'x', 'runs/1/y'], check=True); assert os.path.exists('x'); "
    "subprocess.run('echo 2 >> log.txt', shell=True, check=True); assert '2' in open('log.txt').read()",
    "odd names": "p = next(Path('sub dir').iterdir()); p.write_text('x'); open(b'not-utf8-\\xff', 'ab').write(b'x'); "
    "open(os.fsencode(home) + b'/new-\\xff', 'wb').write(b'x'); assert b'new-\\xff' in os.listdir(b'.')",
    "permissions and times": "os.chmod('best.pt', 0o600); os.utime(home + '/runs/1/big.pt', (1, 1)); "
    "os.truncate('best.pt', 5); Path('../scratch/runs/7/model.pt').chmod(0o700)",
    "links": "os.symlink('best.pt', 'l'); os.link('best.pt', 'h'); open('h', 'ab').write(b'x'); open('l', 'wb'); "
    "os.symlink(home + '/runs', 'r'); open('r/1/events', 'w'); os.symlink('../data', home + '/d'); open('d/n', 'w')",
    "a database": "import sqlite3; sqlite3.connect('x.db').execute('create table a (b)'); "
    "sqlite3.connect(home + '/y.db').execute('create table a (b)'); assert os.path.exists('y.db'); "
    "sqlite3.connect(':memory:').execute('create table a (b)')",
    "in workers": """
import multiprocessing
def work(number): open(f'far/7/{number}', 'w').write('x'); open('best.pt', 'ab').write(b'x')
workers = [multiprocessing.get_context('fork').Process(target=work, args=(n,)) for n in range(4)]
[worker.start() for worker in workers]
[worker.join() for worker in workers]
assert [worker.exitcode for worker in workers] == [0] * 4
assert len(os.listdir('far/7')) == 6 and os.path.getsize('best.pt') == BIG + 4""",
    "in modules": "import sys; sys.path.insert(0, home); import helper; assert helper.NUMBER == 7; "
    "subprocess.run([sys.executable, '-c', 'import helper'], check=True, env={**os.environ, 'PYTHONSAFEPATH': ''})",
}


@pytest.mark.parametrize("code", WRITES.values(), ids=WRITES.keys())
def test_nothing_written_reaches_the_users_files(world: Path, code: str) -> None:
    check(world, code)


REMOVALS = {
    "a file": "os.remove('log.txt'); os.unlink(path='best.pt'); assert not os.path.exists('best.pt')",
    "by absolute paths": "os.remove(home + '/best.pt'); assert not os.path.exists(home + '/best.pt'); "
    "p = Path(home).parent / 'out/old.txt'; p.unlink(); assert not p.exists() and list(p.parent.iterdir()) == []",
    "a folder": "shutil.rmtree('runs'); assert not os.path.exists('runs'); os.makedirs('runs/1'); "
    "assert os.listdir('runs/1') == []",
    "an absolute folder": "p = Path(home).parent / 'scratch/runs'; shutil.rmtree(p); assert not p.exists()",
    "what is behind a link": "shutil.rmtree('far/7'); assert os.listdir('far') == []",
    "a link": "os.remove('far'); os.remove('latest.pt'); assert os.path.exists('best.pt')",
    "links as trees": """
try: shutil.rmtree('far')
except OSError: pass
else: raise SystemExit('a link is no tree')""",
    "a whole parent": "shutil.rmtree('../scratch'); shutil.rmtree('../data'); assert not os.path.exists('../data')",
    "by another name": "os.rename('runs', 'old'); open('old/1/big.pt', 'ab').write(b'x'); os.rename('old/1', 'one'); "
    "assert os.path.getsize('one/big.pt') == BIG + 1; os.rename('../scratch', '../moved'); "
    "open('../moved/runs/7/model.pt', 'ab').write(b'x'); shutil.move('best.pt', home + '/../out/b.pt')",
    "everything": "[shutil.rmtree(p) if p.is_dir() and not p.is_symlink() else p.unlink() for p in Path().iterdir()]; "
    "assert os.listdir() == []",
}


@pytest.mark.parametrize("code", REMOVALS.values(), ids=REMOVALS.keys())
def test_nothing_removed_is_the_users(world: Path, code: str) -> None:
    check(world, code)


READS = {
    "files": "assert open('log.txt').read() == 'epoch 1\\n'; assert len(open('best.pt', 'rb').read()) == BIG; "
    "assert open('latest.pt', 'rb').read(4) == open('far/7/model.pt', 'rb').read(4) == b'0123'",
    "other folders": "assert open('../data/train.csv').read() == open('near/train.csv').read() == '1,2\\n'; "
    "assert open(home + '/../data/train.csv').read() == '1,2\\n'",
    "odd files": "assert stat.S_ISFIFO(os.stat('fifo').st_mode); assert os.path.lexists('dangling'); "
    "assert not os.path.exists('dangling'); assert open(b'not-utf8-\\xff').read() == 'bytes'",
    "a marker in a parent": "p = Path(__file__).resolve(); "
    "assert any((q / 'pyproject.toml').exists() for q in p.parents)",
    "resources": "import sys; sys.path.insert(0, ''); import importlib.resources, pkg.train; "
    "assert importlib.resources.files('pkg').joinpath('words.txt').read_text() == 'words'",
}


@pytest.mark.parametrize("code", READS.values(), ids=READS.keys())
def test_everything_that_is_read_is_there(world: Path, code: str) -> None:
    check(world, code)


def test_a_folder_with_too_many_files_is_walked_as_ever(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is linked, which neither a walk nor a resolved path may show."""
    monkeypatch.setattr("unstuck.capture.trial.isolation.stage.ENTRIES", MANY)
    folder = world / "project" / "many"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "x").write_bytes(b"x")
    for number in range(MANY):
        (folder / str(number)).touch()
    check(
        world,
        f"""
assert not os.path.islink('many')
walked = [os.path.relpath(os.path.join(d, f)) for d, _, fs in os.walk('.') for f in fs]
assert 'many/deep/x' in walked and len(os.listdir('many')) == {MANY + 1}
assert Path('many/deep/x') in list(Path('.').rglob('x'))
assert not Path('many').is_symlink() and Path('far').is_symlink()
assert str(Path('many/deep').resolve()).startswith(stage.root)
open('many/deep/x', 'w').write('y')
open('many/7', 'w').write('y')
assert open('many/deep/x').read() == open(home + '/many/7').read() == 'y'
shutil.rmtree('many')
assert not os.path.exists('many')
""",
    )


def test_what_no_wrapper_sees_is_refused_or_copied_first(world: Path) -> None:
    """A reference to `open` that was taken before, as some libraries have one."""
    check(
        world,
        """
import bz2, io, posix, _io
_io.open('best.pt', 'ab').write(b'x')
_io.FileIO('far/7/model.pt', 'w').write(b'x')
bz2.open('runs/1/big.pt', 'w').write(b'x')
posix.unlink('far/7/small.txt')
for attempt in (
    lambda: _io.open(home + '/best.pt', 'ab'), lambda: posix.unlink(home + '/log.txt'),
    lambda: posix.mkdir(home + '/../new'), lambda: posix.rename(home + '/log.txt', home + '/log2.txt'),
):
    try: attempt()
    except PermissionError as error: assert 'unstuck' in str(error)
    else: raise SystemExit('written')
""",
    )


def test_a_script_above_or_beside_the_working_directory(world: Path) -> None:
    code = "open('../best.pt', 'ab').write(b'x'); p = Path('..').resolve(); assert str(p).startswith(stage.root); "
    code += "assert not os.readlink('../far').startswith(home); assert not stage.leads_out(str(p / 'train.py')); "
    check(world, code + "(p / 'made').mkdir()", str(world / "project"), home="project/runs")
    check(world, "assert not stage.leads_out(stage.root + home + '/../project/train.py')", str(world), home="data")


LOOP = """
import os, shutil, sys, time
from pathlib import Path
import torch
from torch import nn
from helper import NUMBER

here = Path(__file__).resolve().parent
model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
(here / "out").mkdir(exist_ok=True)
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 3)).pow(2).mean()
    loss.backward()
    optimizer.step()
    for path in ("best.pt", os.environ["UNSTUCK_TEST_HOME"] + "/abs.pt", "far/7/model.pt", here / "out" / "model.pt"):
        torch.save(model.state_dict(), path)
        model.load_state_dict(torch.load(path))
    torch.save({"step": step}, "new.tmp")
    os.replace("new.tmp", "latest.pt")
    with open("log.txt", "a") as log:
        log.write(f"{step} {loss.item()}\\n")
    shutil.rmtree("runs", ignore_errors=True)
    os.makedirs("runs/1")
    open("../out/old.txt", "a").write("x")
assert len(open("log.txt").readlines()) == 7 and NUMBER == 7
if sys.argv[1:] == ["crash"]:
    raise RuntimeError("no luck")
if sys.argv[1:] == ["hang"]:
    while True:
        time.sleep(0.1)
"""


def run(world: Path, monkeypatch: pytest.MonkeyPatch, program: Program, seconds: float = 30.0) -> list[str]:
    """One trial to the end and one that is stopped; how they ended."""
    project = world / "project"
    monkeypatch.chdir(project)
    monkeypatch.setenv("UNSTUCK_TEST_HOME", str(project))
    before = picture_of(world)
    with Runner(program, project / ".unstuck" / "trials", jobs=2) as runner:
        outcomes = runner.run([Variant("whole"), Variant("short", (StopAfter(2),))], seconds)
    assert picture_of(world) == before, [outcome.output for outcome in outcomes]
    assert not list(project.glob(".unstuck/trials/layer"))
    return [outcome.status if outcome.status != "crashed" else outcome.output[-20:] for outcome in outcomes]


def test_trials_of_a_script(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "project" / "train.py").write_text(LOOP)
    assert run(world, monkeypatch, Program("train.py")) == ["finished", "stopped"]


@pytest.mark.slow
def test_trials_that_crash_of_a_script_named_by_its_absolute_path(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = world / "code" / "src"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(LOOP)
    (folder / "helper.py").write_text("NUMBER = 7\n")
    whole, short = run(world, monkeypatch, Program(str(folder / "train.py"), ("crash",)))
    assert "no luck" in whole
    assert short == "stopped"


@pytest.mark.slow
def test_trials_that_do_not_end_of_a_module(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (world / "project" / "pkg" / "train.py").write_text(LOOP.replace("from helper", "from .part"))
    (world / "project" / "pkg" / "part.py").write_text("NUMBER = 7\n")
    program = Program("pkg.train", ("hang",), as_module=True)
    assert run(world, monkeypatch, program, seconds=4.0) == ["stopped", "stopped"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_command_leaves_no_stage(world: Path, number: int) -> None:
    project = world / "project"
    (project / "train.py").write_text(LOOP)
    before = picture_of(world)
    environment = {**os.environ, "UNSTUCK_TEST_HOME": str(project)}
    command = [sys.executable, "-m", "unstuck", "overfit", "train.py", "hang"]
    process = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.DEVNULL)
    await_stage(project)
    process.send_signal(number)
    assert process.wait(30) != 0
    deadline = time.monotonic() + 20
    while list(project.glob(".unstuck/runs/*/layer")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert picture_of(world) == before
    assert not list(project.glob(".unstuck/runs/*/layer"))


def await_stage(project: Path) -> None:
    """Wait until a trial has written something."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(FileNotFoundError):  # what comes and goes meanwhile
            if list(project.glob(".unstuck/runs/*/layer/*/*/upper/**/project/out/model.pt")):
                return
        time.sleep(0.1)
    raise AssertionError("no trial has begun")
