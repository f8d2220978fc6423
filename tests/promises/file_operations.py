"""Ways to change files, each a few lines of Python over `b`, a folder of its own: relative in one run, absolute in
another. Every folder holds `small.txt`, `large.bin`, `old.db`, `dir/inner.txt`, `dir/large.bin`, `empty/`, and `link`
and `far`, which lead to `large.bin` and `dir`.

An operation may succeed or be refused; it must leave the world as it was. `NEEDED` ones must also succeed where the
kernel gives a trial its own layer: scripts do them every day.
"""

from __future__ import annotations

NEEDED = {
    "write a file": "open(b + '/new.txt', 'w').write('x'); assert open(b + '/new.txt').read() == 'x'",
    "write over a small file": "open(b + '/small.txt', 'w').write('x'); assert open(b + '/small.txt').read() == 'x'",
    "write over a large file": "open(b + '/large.bin', 'wb').write(b'x'); assert os.path.getsize(b + '/large.bin') == 1",
    "append to a small file": "open(b + '/small.txt', 'a').write('x'); assert open(b + '/small.txt').read() == 'smallx'",
    "append to a large file": "n = os.path.getsize(b + '/large.bin'); open(b + '/large.bin', 'ab').write(b'x'); "
    "assert os.path.getsize(b + '/large.bin') == n + 1",
    "update a large file": "f = open(b + '/large.bin', 'r+b'); f.write(b'xx'); f.close(); "
    "assert open(b + '/large.bin', 'rb').read(2) == b'xx'",
    "write through a link": "open(b + '/link', 'wb').write(b'x'); assert os.path.getsize(b + '/large.bin') == 1",
    "write through a linked folder": "open(b + '/far/inner.txt', 'w').write('x'); "
    "assert open(b + '/dir/inner.txt').read() == 'x'",
    "pathlib": "p = Path(b); (p / 'new').write_bytes(b'x'); (p / 'small.txt').touch(); (p / 'd').mkdir(); "
    "(p / 'large.bin').unlink(); assert not (p / 'large.bin').exists()",
    "remove a file": "os.remove(b + '/small.txt'); assert not os.path.exists(b + '/small.txt')",
    "remove a folder": "shutil.rmtree(b + '/dir'); assert not os.path.exists(b + '/dir')",
    "replace a folder": "shutil.rmtree(b + '/dir'); os.makedirs(b + '/dir'); assert os.listdir(b + '/dir') == []",
    "rename a file": "os.rename(b + '/small.txt', b + '/s'); assert open(b + '/s').read() == 'small'",
    "replace a file": "open(b + '/t', 'w').write('x'); os.replace(b + '/t', b + '/large.bin'); "
    "assert open(b + '/large.bin').read() == 'x'",
    "rename a folder": "os.rename(b + '/dir', b + '/d'); assert open(b + '/d/inner.txt').read() == 'inner'; "
    "assert not os.path.exists(b + '/dir')",
    "rename a folder with pathlib": "Path(b + '/dir').rename(b + '/empty'); "
    "assert open(b + '/empty/inner.txt').read() == 'inner'",
    "move a folder": "shutil.move(b + '/dir', b + '/d'); assert open(b + '/d/inner.txt').read() == 'inner'",
    "make folders": "os.makedirs(b + '/a/b/c'); assert os.path.isdir(b + '/a/b/c')",
    "links": "os.symlink('small.txt', b + '/l'); os.link(b + '/large.bin', b + '/h'); open(b + '/h', 'ab').write(b'x')",
    "copy": "shutil.copy(b + '/small.txt', b + '/large.bin'); shutil.copytree(b + '/dir', b + '/copy')",
    "copy with times": "shutil.copy2(b + '/small.txt', b + '/dir/large.bin')",
    "archives": "shutil.make_archive(b + '/a', 'zip', b + '/dir'); shutil.unpack_archive(b + '/a.zip', b + '/out'); "
    "assert os.path.exists(b + '/out/inner.txt')",
    "tar over files": "import tarfile; t = tarfile.open(b + '/t.tar', 'w'); t.add(b + '/small.txt', 'large.bin'); "
    "t.close(); tarfile.open(b + '/t.tar').extractall(b); assert os.path.getsize(b + '/large.bin') == 5",
    "compressed files": "import gzip, bz2, lzma\nfor m in (gzip, bz2, lzma):\n    m.open(b + '/large.bin', 'wb').write(b'x')",
    "pickle and json": "import json, pickle; pickle.dump(1, open(b + '/large.bin', 'wb')); "
    "json.dump(1, open(b + '/small.txt', 'w'))",
    "a log": "import logging; h = logging.FileHandler(b + '/small.txt'); h.emit(logging.makeLogRecord({'msg': 'x'})); "
    "h.close(); assert open(b + '/small.txt').read() == 'smallx\\n'",
    "a rotated log": "from logging.handlers import RotatingFileHandler as R; import logging; "
    "h = R(b + '/large.bin', maxBytes=9, backupCount=2); h.emit(logging.makeLogRecord({'msg': 'x' * 20})); h.close()",
    "a temporary file here": "t = tempfile.NamedTemporaryFile(dir=b, delete=False); t.close(); "
    "os.replace(t.name, b + '/large.bin')",
    "a database": "import sqlite3; c = sqlite3.connect(b + '/old.db'); c.execute('delete from a'); c.commit(); c.close()",
    "a database in WAL mode": "import sqlite3; c = sqlite3.connect(b + '/old.db'); c.execute('pragma journal_mode=wal'); "
    "c.execute('insert into a values (2)'); c.commit(); c.close()",
    "attach a database": "import sqlite3; c = sqlite3.connect(':memory:'); c.execute(f\"attach '{b}/old.db' as o\"); "
    "c.execute('drop table o.a'); c.commit(); c.close()",
    "vacuum into a file": "import sqlite3; c = sqlite3.connect(b + '/old.db'); c.execute(f\"vacuum into '{b}/v.db'\")",
    "back up a database": "import sqlite3; c = sqlite3.connect(':memory:'); c.execute('create table z (y)'); "
    "o = sqlite3.connect(b + '/old.db'); c.backup(o); o.close()",
    "dbm": "import dbm; d = dbm.open(b + '/store', 'c'); d['a'] = 'b'; d.close()",
    "numpy": "numpy.save(b + '/large.npy', numpy.ones(3)); numpy.ones(3).tofile(b + '/large.bin'); "
    "numpy.savez(b + '/z.npz', a=numpy.ones(2)); numpy.savetxt(b + '/small.txt', numpy.ones(3))",
    "numpy memmap": "m = numpy.memmap(b + '/large.bin', mode='r+'); m[:9] = 0; m.flush(); "
    "w = numpy.memmap(b + '/dir/large.bin', mode='w+', shape=9); w[:] = 1; w.flush()",
    "mmap": "import mmap; f = open(b + '/large.bin', 'r+b'); m = mmap.mmap(f.fileno(), 0); m[:3] = b'xyz'; m.flush(); "
    "m.close(); assert open(b + '/large.bin', 'rb').read(3) == b'xyz'",
    "torch.save": "torch.save({'a': torch.ones(3)}, b + '/large.bin'); assert torch.load(b + '/large.bin')['a'].sum() == 3",
    "torch.save as of old": "torch.save([1], b + '/large.bin', _use_new_zipfile_serialization=False)",
    "torch.jit.save": "torch.jit.save(torch.jit.script(nn.Linear(1, 1)), b + '/large.bin')",
    "ScriptModule.save": "torch.jit.script(nn.Linear(1, 1)).save(b + '/large.bin'); torch.jit.load(b + '/large.bin')",
    "torch.from_file": "torch.from_file(b + '/large.bin', shared=True, size=8, dtype=torch.uint8).fill_(7); "
    "assert open(b + '/large.bin', 'rb').read(1) == b'\\x07'",
    "storage from a file": "s = torch.UntypedStorage.from_file(b + '/large.bin', shared=True, nbytes=8); s.fill_(3)",
    "torch.export.save": "torch.export.save(torch.export.export(nn.Linear(1, 1), (torch.ones(1, 1),)), b + '/large.pt2')",
    "PyTorchFileWriter": "w = torch._C.PyTorchFileWriter(b + '/large.bin'); w.write_record('a', b'x', 1); "
    "w.write_end_of_file()",
    "tensor.numpy().tofile": "torch.ones(4).numpy().tofile(b + '/far/large.bin')",
    "safetensors": "from safetensors.torch import save_file; save_file({'a': torch.ones(3)}, b + '/large.bin')",
    "safetensors in a linked folder": "from safetensors.numpy import save_file; "
    "save_file({'a': numpy.ones(3)}, b + '/far/large.bin')",
    "h5py": "import h5py; h5py.File(b + '/large.bin', 'w').create_dataset('a', data=[1]); "
    "assert h5py.File(b + '/large.bin')['a'][0] == 1",
    "h5py, appending": "import h5py; h5py.File(b + '/new.h5', 'a')['a'] = 1",
    "pyarrow": "import pyarrow as pa, pyarrow.parquet as pq; pq.write_table(pa.table({'a': [1]}), b + '/large.bin')",
    "pyarrow streams": "import pyarrow as pa\nwith pa.OSFile(b + '/large.bin', 'wb') as f:\n    f.write(b'x')",
    "pyarrow file system": "from pyarrow import fs; f = fs.LocalFileSystem(); f.delete_dir_contents(b + '/dir'); "
    "f.move(b + '/small.txt', b + '/large.bin')",
    "pandas": "import pandas; d = pandas.DataFrame({'a': [1]}); d.to_csv(b + '/small.txt'); d.to_pickle(b + '/large.bin'); "
    "d.to_parquet(b + '/p')",
    "a shell": "subprocess.run(f'echo x > {b}/large.bin; echo y >> {b}/small.txt', shell=True, check=True); "
    "assert os.path.getsize(b + '/large.bin') == 2",
    "rm -rf": "subprocess.run(['rm', '-rf', b + '/dir', b + '/large.bin'], check=True); assert not os.path.exists(b + '/dir')",
    "os.system": "assert os.system(f'rm -rf {b}/dir && mkdir {b}/dir') == 0; assert os.listdir(b + '/dir') == []",
    "posix_spawn": "p = os.posix_spawn('/bin/rm', ['rm', '-rf', b + '/dir'], os.environ); assert os.waitpid(p, 0)[1] == 0",
    "a program elsewhere": "subprocess.run(['rm', '-rf', 'dir', 'large.bin'], cwd=b, check=True)",
    "cp and mv": "subprocess.run(f'cp {b}/small.txt {b}/large.bin && mv {b}/dir {b}/d', shell=True, check=True)",
    "dd and truncate": "subprocess.run(f'dd if=/dev/zero of={b}/large.bin count=1 2>/dev/null && truncate -s 1 {b}/small.txt',"
    " shell=True, check=True)",
    "find -delete": "subprocess.run(['find', b, '-mindepth', '1', '-delete'], check=True); assert os.listdir(b) == []",
    "a python of its own": "subprocess.run([sys.executable, '-c', f'open({b!r} + \"/large.bin\", \"w\")'], check=True)",
    "a forked child": "p = os.fork()\nif p == 0:\n    open(b + '/large.bin', 'w'); os._exit(0)\nassert os.waitpid(p, 0)[1] == 0",
    "a worker": "import multiprocessing as mp; p = mp.get_context('fork').Process(target=spoil, args=(b,)); p.start(); "
    "p.join(); assert p.exitcode == 0",
    "a thread": "import threading; t = threading.Thread(target=spoil, args=(b,)); t.start(); t.join(); "
    "assert os.path.getsize(b + '/large.bin') == 1",
    "a changed directory": "os.chdir(b); open('large.bin', 'w').write('x'); shutil.rmtree('dir')",
    "a changed directory by descriptor": "os.fchdir(os.open(b, os.O_RDONLY)); os.remove('large.bin')",
    "by descriptor of a folder": "d = os.open(b, os.O_RDONLY); os.unlink('large.bin', dir_fd=d); "
    "os.rename('small.txt', 's', src_dir_fd=d, dst_dir_fd=d); os.mkdir('m', dir_fd=d); "
    "f = os.open('n', os.O_CREAT | os.O_WRONLY, dir_fd=d); os.close(f); os.close(d)",
    "truncate": "os.truncate(b + '/large.bin', 5); assert os.path.getsize(b + '/large.bin') == 5",
    "low-level writing": "f = os.open(b + '/large.bin', os.O_RDWR); os.pwrite(f, b'x', 3); os.ftruncate(f, 9); "
    "os.posix_fallocate(f, 0, 20); os.fsync(f); os.close(f)",
    "copy_file_range": "i, o = os.open(b + '/small.txt', os.O_RDONLY), os.open(b + '/large.bin', os.O_WRONLY); "
    "os.copy_file_range(i, o, 5); os.close(i); os.close(o)",
    "sendfile": "i, o = os.open(b + '/small.txt', os.O_RDONLY), os.open(b + '/large.bin', os.O_WRONLY); "
    "os.sendfile(o, i, 0, 5); os.close(i); os.close(o)",
    "libc": "import ctypes; c = ctypes.CDLL(None); e = os.fsencode; f = c.open(e(b + '/large.bin'), os.O_WRONLY | os.O_TRUNC); "
    "assert f >= 0; c.write(f, b'x', 1); c.close(f); assert c.unlink(e(b + '/small.txt')) == 0; "
    "assert c.rmdir(e(b + '/empty')) == 0",
    "stdio of libc": "import ctypes; c = ctypes.CDLL(None); c.fopen.restype = ctypes.c_void_p; "
    "f = c.fopen(os.fsencode(b + '/large.bin'), b'w'); assert f; c.fclose(ctypes.c_void_p(f))",
    "kept references": "import _io, posix; _io.open(b + '/large.bin', 'wb').write(b'x'); posix.unlink(b + '/small.txt'); "
    "posix.mkdir(b + '/m')",
    "a fifo and a socket": "os.mkfifo(b + '/fifo'); import socket; os.chdir(b); s = socket.socket(socket.AF_UNIX); "
    "s.bind('s'); s.close()",
    "an edit in place": "import fileinput\nfor line in fileinput.input(b + '/small.txt', inplace=True):\n    print('x')",
    "a terminal of its own": "import pty; a, c = pty.openpty(); os.write(c, b'x'); os.close(a); os.close(c)",
    "the temporary folder": "p = os.path.join(tempfile.gettempdir(), 'best.pt'); torch.save([1], p); assert torch.load(p) == [1]",
    "what lies in the temporary folder": "open(os.environ['UNSTUCK_TEST_TMP'] + '/mine.pt', 'w').write('x')",
    "a cache": "p = os.path.join(os.environ['HF_HOME'], 'x'); os.makedirs(p, exist_ok=True); open(p + '/y', 'w').write('z'); "
    "assert open(p + '/y').read() == 'z'",
    "the home folder": "p = os.path.expanduser('~/.config/tool.ini'); open(p, 'a').write('x'); "
    "shutil.rmtree(os.path.expanduser('~/keep'), ignore_errors=True); assert not os.path.exists(os.path.expanduser('~/keep'))",
    "git": "subprocess.run('git init -q . && git add -A', shell=True, cwd=b, check=True, env={**os.environ, 'GIT_DIR': '.git'})",
}
"""What scripts do every day."""

ODD = {
    "an unnamed file": "f = os.open(b, os.O_TMPFILE | os.O_RDWR); os.write(f, b'x'); "
    "os.link(f'/proc/self/fd/{f}', b + '/named', follow_symlinks=True); os.close(f)",
    "permissions": "os.chmod(b + '/large.bin', 0); os.chmod(b + '/dir', 0o700); Path(b + '/small.txt').chmod(0o777)",
    "permissions of a link": "os.chmod(b + '/link', 0)",
    "chmod -R": "subprocess.run(['chmod', '-R', '000', b])",
    "fchmod": "f = os.open(b + '/large.bin', os.O_RDONLY); os.fchmod(f, 0); os.close(f)",
    "chown": "os.chown(b + '/large.bin', 12, 12); os.lchown(b + '/link', 12, 12)",
    "chown -R": "subprocess.run(['chown', '-R', '12:12', b])",
    "chgrp": "os.chown(b + '/small.txt', -1, os.getgid())",
    "times": "os.utime(b + '/large.bin', (1, 1)); os.utime(b + '/dir', (1, 1)); os.utime(b + '/link', (1, 1), follow_symlinks=False)",
    "touch": "subprocess.run(['touch', '-t', '200001010000', b + '/small.txt', b + '/dir'])",
    "times by descriptor": "f = os.open(b + '/large.bin', os.O_RDONLY); os.utime(f, (1, 1)); os.close(f)",
    "attributes": "os.setxattr(b + '/large.bin', 'user.x', b'y')",
    "attributes by descriptor": "f = os.open(b + '/small.txt', os.O_RDONLY); os.setxattr(f, 'user.x', b'y'); os.close(f)",
    "attributes removed": "os.removexattr(b + '/marked', 'user.mark')",
    "flags": "subprocess.run(['chattr', '+d', b + '/small.txt'])",
    "versions": "import fcntl, array\nfor name in ('small.txt', 'dir'):\n    f = os.open(b + '/' + name, os.O_RDONLY)\n"
    "    fcntl.ioctl(f, 0x40087602, array.array('q', [7]))",
    "versions of ext4": "import fcntl, array\nfor name in ('small.txt', 'dir'):\n"
    "    fcntl.ioctl(os.open(b + '/' + name, os.O_RDONLY), 0x40086604, array.array('q', [7]))",
    "a device": "os.mknod(b + '/dev', 0o600 | stat.S_IFCHR, os.makedev(1, 3))",
    "a node": "os.mknod(b + '/node')",
    "hard link, then write": "os.link(b + '/large.bin', b + '/h'); open(b + '/h', 'wb').write(b'x')",
    "hard link to elsewhere": "os.link(b + '/large.bin', os.path.join(tempfile.gettempdir(), 'h')); "
    "open(os.path.join(tempfile.gettempdir(), 'h'), 'wb').write(b'x')",
    "ln -f": "subprocess.run(['ln', '-f', b + '/small.txt', b + '/large.bin'])",
    "exchange": "import ctypes; e = os.fsencode; "
    "ctypes.CDLL(None).renameat2(-100, e(b + '/small.txt'), -100, e(b + '/large.bin'), 2)",
    "through /proc/self/cwd": "open('/proc/self/cwd/' + os.path.relpath(b) + '/large.bin', 'w')",
    "through /proc/self/root": "open('/proc/self/root' + os.path.abspath(b) + '/large.bin', 'w')",
    "through the root of others": """
for pid in ['1', str(os.getppid()), *filter(str.isdigit, os.listdir('/proc'))]:
    try: open(f'/proc/{pid}/root' + os.path.abspath(b) + '/large.bin', 'w').write('x')
    except OSError: pass
    try: os.chmod(f'/proc/{pid}/root' + os.path.abspath(b) + '/small.txt', 0)
    except OSError: pass""",
    "through the folders of others": """
for pid in filter(str.isdigit, os.listdir('/proc')):
    try: opened = os.listdir(f'/proc/{pid}/fd')
    except OSError: continue
    for number in opened:
        try: open(f'/proc/{pid}/fd/{number}/../../../../../../../../' + os.path.abspath(b) + '/large.bin', 'w').write('x')
        except OSError: pass""",
    "through our own descriptors": """
for number in range(3, 64):
    try: folder = os.open('..', os.O_RDONLY, dir_fd=number)
    except OSError: continue
    for depth in range(12):
        try: os.unlink('../' * depth + os.path.abspath(b)[1:] + '/large.bin', dir_fd=folder)
        except OSError: pass""",
    "a descriptor opened again": "f = os.open(b + '/large.bin', os.O_RDONLY); open(f'/proc/self/fd/{f}', 'w').write('x')",
    "unmounting": "subprocess.run(f'umount -l {os.path.abspath(b)}; umount -l /; umount -a -l', shell=True); "
    "open(b + '/large.bin', 'w')",
    "mounts of its own": "subprocess.run(f'unshare -rm sh -c \"umount -l /tmp; mount -o remount,rw,bind /; "
    "rm -rf {os.path.abspath(b)}/dir\"', shell=True)",
    "another namespace": "subprocess.run(f'nsenter -t 1 -m rm -rf {os.path.abspath(b)}/dir', shell=True)",
    "chroot": "os.chroot('/proc/1/root'); open(b + '/large.bin', 'w')",
    "a disk": "[open(p, 'r+b').write(b'') for p in __import__('glob').glob('/dev/vd*') + __import__('glob').glob('/dev/sd*')]",
    "io_uring": "import ctypes; ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120))",
    "a spawned worker": "import multiprocessing as mp; import spoiling; "
    "p = mp.get_context('spawn').Process(target=spoiling.spoil, args=(b,)); p.start(); p.join()",
    "a worker of a server": "import multiprocessing as mp; import spoiling; "
    "p = mp.get_context('forkserver').Process(target=spoiling.spoil, args=(b,)); p.start(); p.join()",
    "a daemon": "subprocess.Popen(['sh', '-c', f'sleep 1; rm -rf {os.path.abspath(b)}/dir; sleep 987.654'], start_new_session=True, "
    "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
    "a daemon's daemon": "p = os.fork()\nif p == 0:\n    os.setsid()\n    if os.fork() == 0: os.execvp('sleep', ['sleep', '987.654'])"
    "\n    os._exit(0)\nos.waitpid(p, 0)",
    "signals to others": "[os.kill(int(os.environ['UNSTUCK_TEST_PID']), n) for n in (15, 9)]",
    "shared memory of ours": "from multiprocessing import shared_memory as s; m = s.SharedMemory(create=True, size=9); m.close(); "
    "m.unlink()",
    "a switch of the machine": "open('/proc/sys/kernel/hostname', 'w').write('spoiled')",
    "at exit": "import atexit; atexit.register(spoil, b)",
}
"""What would be mischief, or is rare. It may be refused."""

SPOIL = """
import os
def spoil(b):
    open(b + '/large.bin', 'w').write('x')
    open(os.path.abspath(b) + '/small.txt', 'w').write('x')
"""
