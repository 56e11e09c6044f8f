"""``sheafgossip config show``, ``topology show`` and ``encoder train``: what a run would be made of."""

from collections.abc import Sequence
from pathlib import Path

from ...metrics.terminal import say
from ..config.files import load


def show_configuration(file: Path, overrides: Sequence[str] | None) -> None:
    for config in load(file, overrides or ()):
        print(config.to_toml())


def show_topology(file: Path, overrides: Sequence[str] | None, picture: Path | None) -> None:
    from ...topology.figures import describe
    from ..prepare.preparation import draw_graphs

    config = load(file, overrides or ())[0]
    graphs = draw_graphs(config)
    kind = config.topology.kind if config.algorithm.traits.server == "none" else "star around a server"
    figures = {"kind": kind, "clients": f"{config.clients}", **describe(graphs)}
    if picture is not None:
        from ...topology.picture import draw_picture

        draw_picture(graphs, picture, title=f"{config.topology.kind}, {config.clients} clients")
        figures["picture"] = f"{picture}"
    for name, value in figures.items():
        print(f"{name:<30}{value}")


def train_encoder(file: Path, overrides: Sequence[str] | None, out: Path, epochs: int, embedding: int | None) -> None:
    from ..prepare import encoders

    for epoch, error in encoders.train_encoder(load(file, overrides or ())[0], epochs, embedding, out):
        say(f"epoch {epoch}: mean squared error {error:.5f}")
    say(f"encoder: {out}")
