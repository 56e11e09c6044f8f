"""Models as one flat vector: architectures, forward passes, gradients, cost."""
