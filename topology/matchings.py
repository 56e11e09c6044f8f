"""A graph's edges dealt to matchings: sets of edges in which no client has two."""

from .graph import Graph


def matchings(graph: Graph) -> dict[tuple[int, int], int]:
    """{edge: number of its matching}, from 0: each edge takes the first matching that is free at both of its ends.

    That makes at least as many matchings as the largest degree, and fewer than twice as many.
    """
    taken = [0] * graph.clients  # of each client, the matchings that have an edge of it, as bits
    numbers = {}
    for i, j in graph.edges:
        free = ~(taken[i] | taken[j])
        first = free & -free
        taken[i] |= first
        taken[j] |= first
        numbers[i, j] = first.bit_length() - 1
    return numbers
