"""The launcher's end of the process that writes a run to an experiment tracker."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from ...metrics.trackers import MLFLOW_URI
from ...metrics.tracking import last_line, process_of
from ..config.sections import RunConfig
from ..prepare.prepared import Prepared

_END_S, _HASTE_S, _LOOK_S = 30.0, 0.3, 0.02
_STATUS = {"finish": "finished", "failure": "failed", "interrupt": "interrupted"}


def tracking_folder(config: RunConfig, run: Path) -> Path:
    wanted = config.tracking.folder
    return run / "tracking" if wanted is None else wanted / run.name if config.tracking.to == "tensorboard" else wanted


class TrackerProcess(AbstractContextManager["TrackerProcess"]):
    """Nothing that befalls it befalls the run: it is told once. There is none where the run has no tracker."""

    def __init__(self, prepared: Prepared):
        wanted, run = prepared.config.tracking, prepared.folder
        self._process: subprocess.Popen[bytes] | None = None
        self._why = ""
        if wanted.to == "none":
            return
        folder, chosen, self._log = tracking_folder(prepared.config, run), bool(wanted.folder), run / "log/tracking.log"
        elsewhere = wanted.to == "tensorboard" or (wanted.to == "mlflow" and not chosen and MLFLOW_URI in os.environ)
        words = ["sheafgossip", "export", run, "--to", wanted.to, *([] if elsewhere else ["--out", folder])]
        self._lost = f"tracking.to = {wanted.to!r}: not all rounds are there, write them with "
        self._lost += f"`{shlex.join(map(str, words))}`"
        try:
            with os.fdopen(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)) as log:
                how = process_of(run, wanted.to, folder, chosen=chosen, parent=os.getpid())
                pipes: dict = {"stdin": subprocess.PIPE, "stdout": log, "stderr": log, "start_new_session": True}
                self._process = subprocess.Popen(**how, **pipes)
        except OSError as error:
            self._why = f"{self._lost}: {error.strerror}"

    def news(self) -> str:
        """Returns why the run is not all in the tracker's store, if that is known and not told yet."""
        if self._process and self._process.poll():
            with suppress(OSError):
                self._why = f"{self._lost}: {last_line(self._log.read_text(errors='replace')[-4000:])}"
            self.__exit__()
        why, self._why = self._why, ""
        return why

    def end(self, status: str, tell: Callable[[str], None], impatient: Callable[[], bool]) -> str:
        """Tells it how the run has ended and waits; hardly, unless it has finished. Returns what ``news`` does."""
        if self._process is None:
            return self.news()
        with suppress(OSError):
            assert self._process.stdin
            with self._process.stdin as line:
                line.write(f"{_STATUS[status]}\n".encode())
        began = time.monotonic()
        while self._process.poll() is None:
            waited_s = time.monotonic() - began
            if waited_s > (_END_S if status == "finish" and not impatient() else _HASTE_S):
                self.__exit__()
                return f"{self._lost}: the run did not wait for it"
            if waited_s > 1.0:
                tell("writing to the tracker")
            time.sleep(_LOOK_S)
        return self.news()

    def __exit__(self, *_: object) -> None:
        if process := self._process:
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it has started
            process.wait()
            assert process.stdin
            with suppress(OSError):
                process.stdin.close()
            self._process = None
