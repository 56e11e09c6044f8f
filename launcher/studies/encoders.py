"""Encoders that runs of a part need before they begin: trained once, and kept beside the runs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ...topology.section import Count, Section
from ..config.data import DataSection
from ..config.sections import RunConfig
from ..data.pool import DataError
from ..data.sets import load
from ..prepare.preparation import train_encoder
from ..run.earlier import PlannedRun

NO_FILES = ("digits", "synthetic", "own")


@dataclass(frozen=True, kw_only=True)
class EncoderTable(Section):
    """An entry of [[reproduction.encoders]]: the autoencoder of the runs whose ``algorithm.encoder`` is ``file``, and
    the images that it is trained on. A file of one name is the same in all parts."""

    file: str
    epochs: Count
    data: DataSection

    def below(self, data_root: Path) -> "EncoderTable":
        """Only a folder of the data set's name will do: files of others are called alike."""
        root = data_root / self.data.dataset
        return replace(self, data=replace(self.data, root=root.resolve())) if root.is_dir() else self

    def lacks(self) -> str:
        """Tells why it cannot be trained; "" where it can."""
        if self.data.dataset not in NO_FILES and self.data.root is None:
            return f"no folder {self.data.dataset} below --data-root"
        try:
            load(self.data, 0)
        except DataError as error:
            return str(error)
        return ""

    def of(self, config: RunConfig) -> bool:
        return Path(getattr(config.algorithm, "encoder", "")).name == self.file


def placed(config: RunConfig, out: Path) -> RunConfig:
    """Takes a run's encoder from below ``out``."""
    if not getattr(config.algorithm, "encoder", ""):
        return config
    return config.but(algorithm={"encoder": str(out / "encoders" / Path(config.algorithm.encoder).name)})


def train_encoders(encoders: Sequence[EncoderTable], missing: Sequence[PlannedRun]) -> Iterator[str]:
    """Trains what the missing runs need and what is not there, and tells so. Raises UserError."""
    for encoder in encoders:
        config = next((run.config for run in missing if encoder.of(run.config)), None)
        if config is not None and not Path(config.algorithm.encoder).exists():
            images = encoder.data.use.rpartition("/")[2] or encoder.data.dataset
            yield f"training the encoder {encoder.file}: {encoder.epochs} epochs on {images}"
            for _ in train_encoder(config.but(data=encoder.data), encoder.epochs, None, Path(config.algorithm.encoder)):
                pass
