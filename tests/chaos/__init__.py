"""Random runs full of faults, held against what their plans say: ``make chaos``."""
