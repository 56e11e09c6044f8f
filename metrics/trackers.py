"""Experiment trackers, a class each. A store has a run once: made anew, it takes the place of what was there of it."""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Self

from .config_file import flat, read_config
from .reader import open_records
from .records import TABLES
from .store import PREPARED

EVENT_FILE = "events.out.tfevents.sheafgossip"  # TensorBoard opens files with "tfevents" in their name
MLFLOW_URI = "MLFLOW_TRACKING_URI"
_PROJECT = "sheafgossip"
_MOST_AT_ONCE = 1000  # metrics, and characters of a parameter, that MLflow takes
_STATUS_OF_MLFLOW = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
Scalars = Sequence[tuple[float, Mapping[str, float]]]  # of a round: wall seconds, {tag: value}


@dataclass(frozen=True)
class Subject:
    """The run, as trackers are told of it."""

    key: str  # tells it from every other run, wherever its folder is
    name: str
    parameters: Mapping[str, str]  # {key of the configuration with dots: value}
    began: float  # Unix seconds

    @classmethod
    def of(cls, run: Path) -> Self:
        """Raises RunFolderError."""
        with open_records(run, check=TABLES) as records:
            (told,) = records.execute("SELECT max(value) FROM meta WHERE key = ?", [PREPARED]).fetchone()
        began = 0.0
        with suppress(ValueError):
            began = datetime.fromisoformat(str(told)).timestamp()
        key = sha256(f"{told or run.resolve()}".encode()).hexdigest()[:16]
        values = {name: str(value)[:_MOST_AT_ONCE] for name, value in flat(read_config(run)).items()}
        return cls(key, run.resolve().name, values, began)


class Tracker:
    """Where a run is written to; ``needs`` are the packages. To add one: a class, and its name in TRACKERS, in
    [tracking] to, and among the extras."""

    needs: ClassVar[tuple[str, ...]]

    def __init__(self, run: Subject, folder: Path):
        raise NotImplementedError

    def log(self, round: int, scalars: Scalars) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        """Called about once a second."""

    def end(self, status: str) -> None:
        """``status`` is finished, failed, interrupted or running."""


class TensorBoard(Tracker):
    """An event file: a step is a round; its time is, for all clients, when the last one was done."""

    needs = ("tensorboard",)

    def __init__(self, run: Subject, folder: Path, name: str = EVENT_FILE):
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        self._file = (folder / name).open("wb")
        self._writer = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event(**fields).SerializeToString())

    def log(self, round: int, scalars: Scalars) -> None:
        for wall_s, tags in scalars:
            values = [self._summary.Value(tag=tag, simple_value=value) for tag, value in tags.items()]
            self._write(step=round, wall_time=wall_s, summary=self._summary(value=values))

    def flush(self) -> None:
        self._file.flush()

    def end(self, status: str) -> None:
        self._file.close()


class MLflow(Tracker):
    """Its own variables name another store or server, and the experiment."""

    needs = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, run: Subject, folder: Path):
        asked = {"MLFLOW_DISABLE_TELEMETRY": "true"}
        asked |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        os.environ |= asked | os.environ
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._began, self._waiting = Metric, run.began, list[Any]()
        there, project = os.environ.get(MLFLOW_URI), os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
        self._client = MlflowClient(there or f"sqlite:///{folder}/mlflow.db")
        files = None if there else (folder / "artifacts").as_uri()
        found = self._client.get_experiment_by_name(project)
        number = found.experiment_id if found else self._client.create_experiment(project, files)
        for old in self._client.search_runs([number], f"tags.sheafgossip_run = '{run.key}'"):
            self._client.delete_run(old.info.run_id)
        about: dict[str, Any] = {"tags": {"sheafgossip_run": run.key}, "run_name": run.name}
        self._run = self._client.create_run(number, int(1000 * run.began) or None, **about).info.run_id
        parameters = [Param(self._name(key), value) for key, value in run.parameters.items()]
        for some in range(0, len(parameters), 100):
            self._client.log_batch(self._run, params=parameters[some : some + 100])

    @staticmethod
    def _name(name: str) -> str:
        return re.sub(r"[^\w\-. :/]", "_", name)[:250]

    def log(self, round: int, scalars: Scalars) -> None:
        for wall_s, tags in scalars:
            when = int(1000 * (self._began + wall_s))
            self._waiting += [self._metric(self._name(tag), value, when, round) for tag, value in tags.items()]
        if len(self._waiting) >= _MOST_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_MOST_AT_ONCE])
            del self._waiting[:_MOST_AT_ONCE]

    def end(self, status: str) -> None:
        self.flush()
        if status in _STATUS_OF_MLFLOW:
            self._client.set_terminated(self._run, _STATUS_OF_MLFLOW[status])


class Wandb(Tracker):
    """Weights & Biases without a network; ``wandb sync`` uploads the folder, if the user wishes to."""

    needs = ("wandb",)

    def __init__(self, run: Subject, folder: Path):
        import wandb

        for old in folder.glob(f"wandb/offline-run-*-{run.key}"):
            shutil.rmtree(old)
        quiet: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        settings = wandb.Settings(**quiet, x_disable_stats=True, x_disable_meta=True)
        what: dict[str, Any] = {"name": run.name, "config": dict(run.parameters), "settings": settings}
        project = os.environ.get("WANDB_PROJECT", _PROJECT)
        self._run = wandb.init(mode="offline", dir=folder, id=run.key, project=project, **what)

    def log(self, round: int, scalars: Scalars) -> None:
        self._run.log(_of_all(scalars), step=round)

    def end(self, status: str) -> None:
        self._run.summary["status"] = status
        self._run.finish(0 if status in ("finished", "running") else 1)


class Trackio(Tracker):
    needs = ("trackio",)

    def __init__(self, run: Subject, folder: Path):
        for name in ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID"):  # no network
            os.environ.pop(name, None)
        os.environ |= {"TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1"}
        import trackio

        with suppress(ValueError):  # there is no such project yet
            for old in list(trackio.Api().runs(_PROJECT)):
                if (old.config or {}).get("sheafgossip_run") == run.key:
                    old.delete()
        about = {**run.parameters, "sheafgossip_run": run.key}
        self._trackio = trackio
        self._run = trackio.init(_PROJECT, run.name, config=about, auto_log_gpu=False, auto_log_cpu=False, embed=False)

    def log(self, round: int, scalars: Scalars) -> None:
        self._run.log(_of_all(scalars), step=round)

    def end(self, status: str) -> None:
        self._trackio.finish()


def _of_all(scalars: Scalars) -> dict[str, float]:
    return {tag: value for _, tags in scalars for tag, value in tags.items()}


TRACKERS: Mapping[str, type[Tracker]] = {
    "mlflow": MLflow,
    "wandb": Wandb,
    "trackio": Trackio,
    "tensorboard": TensorBoard,
}
