"""Draws the pictures of docs/gallery.md from what their benchmarks have kept in benchmarks/results/."""

import drift
import maps
import selective_mnist
import stragglers
import twin
from common import PICTURES, RESULTS

from sheafgossip.metrics.board import read_board
from sheafgossip.metrics.report.board import draw as draw_board


def main() -> None:
    for draw in (drift.draw, maps.draw_all, selective_mnist.draw, stragglers.draw, twin.draw):
        draw()
    board = draw_board(read_board(RESULTS / "board.json"))
    (PICTURES / "board.svg").write_text(board.svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
