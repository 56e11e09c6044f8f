"""The lock of a folder, between real processes."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from sheafgossip.metrics import lock


def test_who_holds_it_keeps_others_out_until_it_lets_go_and_the_last_process_that_inherited_it_is_killed(tmp_path):
    descriptor = lock.acquire(tmp_path, 0)
    assert lock.is_held(tmp_path)
    with pytest.raises(BlockingIOError):
        lock.acquire(tmp_path, 0)
    lock.release(tmp_path, descriptor)
    assert not lock.is_held(tmp_path)
    assert list(tmp_path.iterdir()) == []
    descriptor = lock.acquire(tmp_path, 0)
    wait = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    child = subprocess.Popen(wait, stdin=subprocess.PIPE, pass_fds=[descriptor])
    os.close(descriptor)  # as if this process had been killed
    assert lock.is_held(tmp_path)
    child.kill()
    child.communicate()
    assert not lock.is_held(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")  # is not followed
    with pytest.raises(OSError, match="symbolic links"):
        lock.acquire(tmp_path, 0)
    assert not lock.is_held(tmp_path)
    assert not (tmp_path / "elsewhere").exists()


def test_those_who_ask_never_keep_anyone_from_it_and_one_has_it_at_a_time(tmp_path):
    over, inside = threading.Event(), []

    def ask() -> None:
        while not over.is_set():
            lock.is_held(tmp_path)

    def work(_: int) -> int:
        descriptor = lock.acquire(tmp_path, 30)
        inside.append(1)
        there = len(inside)
        inside.pop()
        lock.release(tmp_path, descriptor)
        return there

    with ThreadPoolExecutor(8) as threads:
        for _ in range(4):
            threads.submit(ask)
        try:
            assert list(threads.map(work, range(200))) == [1] * 200
        finally:
            over.set()


def test_who_is_killed_while_removing_a_folder_leaves_its_lock_to_the_next(tmp_path, monkeypatch):
    """Whatever is removed last."""
    for count in range(7):
        (folder := tmp_path / f"{count}").mkdir()
        os.close(lock.acquire(folder, 0))
        for name in "ab":
            (folder / name).mkdir()
            (folder / name / "socket").touch()
        (folder / "socket").touch()
        left = iter(range(count))

        def killed(*arguments, remove, left=left, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt  # which nothing on the way catches
            remove(*arguments, **options)

        with monkeypatch.context() as patch:
            for name in ("unlink", "rmdir"):
                patch.setattr(os, name, partial(killed, remove=getattr(os, name)))
            with pytest.raises(KeyboardInterrupt):
                lock.remove(folder)
        assert (folder / lock.NAME).exists() or not any(folder.iterdir())
        lock.remove(folder)
        assert not folder.exists()
