"""Floating point operations in closed form: two for a multiplication and an addition, nothing for element-wise work.

Of models, these are the numbers that torch.utils.flop_counter.FlopCounterMode counts.
"""

import math

from .architecture import Architecture


def evaluation_flops(architecture: Architecture) -> int:
    """Of one sample's way forward."""
    return sum(_layers(architecture))


def gradient_flops(architecture: Architecture) -> int:
    """Of one sample's way forward and back.

    Back is twice as much, for the gradients of a layer's weights and of its input; what is given needs none: the data,
    and the zeros from which a GRU starts.
    """
    layers = _layers(architecture)
    given = layers[0]
    if architecture.kind == "gru":
        given += layers[1] // architecture.series[0]
    return 3 * sum(layers) - given


def _layers(architecture: Architecture) -> list[int]:
    return [2 * block.size * block.places for block in architecture.parameters() if block.places]


def product_flops(numbers: int) -> int:
    """Of a matrix of so many numbers times a vector, or of a rank-one change of it."""
    return 2 * numbers


def transform_flops(length: int) -> int:
    """Of a cosine transform, as FFTs of real numbers are rated by convention, whatever the code does: 5/2 d log2 d."""
    return round(2.5 * length * math.log2(length))


def truncation_flops(size: int, height: int, rows: int, rank: int) -> int:
    """Of the best approximation of R^T T, with T (rows, size) and R (rows, height), in ``rank`` rows each.

    Leading terms for Householder QR with its basis (4 m n^2 - 4/3 n^3) and for the SVD (21 n^3): Golub & Van Loan,
    Matrix Computations, sections 5.2 and 8.6.
    """
    inner = [min(rows, length) for length in (size, height)]
    decompositions = sum(
        4 * max(rows, length) * n**2 - 4 * n**3 // 3 for length, n in zip((size, height), inner, strict=True)
    )
    products = 2 * inner[0] * inner[1] * rows + 2 * rank * (inner[0] * size + inner[1] * height)
    return decompositions + products + 21 * min(inner) ** 2 * max(inner)
