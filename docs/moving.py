"""Draws a run of selective sheaf as a picture that moves: python docs/moving.py RUN PICTURE.svg

Clients stand in a circle, those of a group side by side. A line is an edge, as dark as its weight w_ij; a client is as
green as its test accuracy is high. Time is what the picture's viewer animates (SMIL), without a script."""

import sys
from math import cos, pi, sin
from pathlib import Path

import sheafgossip as sg

WIDTH, HEIGHT, RADIUS = 640, 420, 165
LASTS_S, RESTS = 12, 4  # the last frame stays for so many
SOFT, INK, LINE = "#7d8590", "#57606a", "#0072b2"


def moving(values: list[str], attribute: str, mode: str = "linear") -> str:
    held = [*values, *values[-1:] * RESTS]
    if len(set(held)) == 1:
        return ""
    return (
        f'<animate attributeName="{attribute}" values="{";".join(held)}" dur="{LASTS_S}s" calcMode="{mode}" '
        'repeatCount="indefinite"/>'
    )


def colour(share: float) -> str:
    """From grey to green."""
    return "#" + "".join(f"{round(a + share * (b - a)):02x}" for a, b in ((208, 0), (213, 158), (219, 115)))


def picture(run: sg.Run) -> str:
    groups = run.sql("SELECT value FROM meta WHERE key = 'groups'").value[0].split(",")
    nodes = sorted(range(len(groups)), key=lambda node: (groups[node], node))
    accuracy = run.rounds.pivot(index="round", columns="node", values="test_metric").dropna()
    frames = accuracy.index.tolist()
    edges = run.edges[run.edges.node < run.edges.neighbour]
    weights = (
        edges.pivot(index=["node", "neighbour"], columns="round", values="weight").reindex(columns=frames).fillna(0)
    )
    sent = run.sql("SELECT round, SUM(payload_bytes) AS bytes FROM traffic GROUP BY round ORDER BY round")
    sent = sent.set_index("round").bytes.cumsum() / 1e6

    turns = {
        node: 2 * pi * (place + int(groups[node])) / (len(nodes) + len(set(groups))) for place, node in enumerate(nodes)
    }
    at = {node: (WIDTH / 2 + RADIUS * cos(turn), 200 + RADIUS * sin(turn)) for node, turn in turns.items()}
    drawn = []
    for (i, j), row in weights.iterrows():
        (x, y), (x2, y2) = at[i], at[j]
        shades = [f"{0.1 + 0.7 * weight:.2g}" for weight in row]
        drawn.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" opacity="{shades[-1]}">'
            f"{moving(shades, 'opacity')}</line>"
        )
    for node, (x, y) in at.items():
        fills = [colour(share) for share in accuracy[node]]
        drawn.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="11" fill="{fills[-1]}">{moving(fills, "fill")}</circle>')
    for number, frame in enumerate(frames):
        seen = ["1" if other == number else "0" for other in range(len(frames))]
        told = f"round {frame} · accuracy {100 * accuracy.loc[frame].mean():.0f} % · {sent.get(frame, 0.0):.2f} MB sent"
        drawn.append(
            f'<text x="{WIDTH / 2}" y="{HEIGHT - 14}" opacity="{seen[-1]}">{told}'
            f"{moving(seen, 'opacity', 'discrete')}</text>"
        )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif">',
        f"<title>{len(nodes)} clients on a graph find those whose task is theirs</title>",
        f"<style>line {{stroke: {LINE}; stroke-width: 1.6}} circle {{stroke: {INK}}} "
        f"text {{fill: {SOFT}; font-size: 16px; text-anchor: middle}}</style>",
        *drawn,
        "</svg>\n",
    ])  # fmt: skip


if __name__ == "__main__":
    folder, file = sys.argv[1:]
    Path(file).write_text(picture(sg.open_run(folder)), encoding="utf-8")
