"""FLT, and its encoder."""
