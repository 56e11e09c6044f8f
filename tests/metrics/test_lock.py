"""The lock of a folder, between real processes."""

import subprocess
import sys
import threading

import pytest

from sheafgossip.metrics import lock


def test_who_holds_it_keeps_others_out_until_it_lets_go(tmp_path):
    descriptor = lock.acquire(tmp_path, 0)
    assert lock.is_held(tmp_path)
    with pytest.raises(BlockingIOError):
        lock.acquire(tmp_path, 0)
    lock.release(tmp_path, descriptor)
    assert not lock.is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    lock.release(tmp_path, lock.acquire(tmp_path, 0))


def test_it_is_held_for_as_long_as_a_process_that_inherited_it(tmp_path):
    descriptor = lock.acquire(tmp_path, 0)
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[descriptor]
    )
    lock.os.close(descriptor)  # as if this process had been killed
    assert lock.is_held(tmp_path)
    child.communicate()
    assert not lock.is_held(tmp_path)


def test_it_ends_with_a_process_that_is_killed_and_has_it_alone(tmp_path):
    code = f"from sheafgossip.metrics import lock; from pathlib import Path\nlock.acquire(Path({str(tmp_path)!r}), 0)"
    code += "\nprint(flush=True); import sys; sys.stdin.read()"
    holder = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    assert lock.is_held(tmp_path)
    holder.kill()
    holder.communicate()
    assert not lock.is_held(tmp_path)


def test_those_who_ask_never_keep_anyone_from_it_and_one_has_it_at_a_time(tmp_path):
    over = threading.Event()
    inside = []

    def ask():
        while not over.is_set():
            lock.is_held(tmp_path)

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()

    def work():
        for _ in range(50):
            descriptor = lock.acquire(tmp_path, 30)
            inside.append(1)
            assert len(inside) == 1
            inside.pop()
            lock.release(tmp_path, descriptor)
            done.append(1)

    done = []
    try:
        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(done) == 200
    finally:
        over.set()
        for asker in askers:
            asker.join()


def test_a_link_in_its_place_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        lock.acquire(tmp_path / "run", 0)
    assert not lock.is_held(tmp_path / "run")
    assert not (tmp_path / "elsewhere").exists()
