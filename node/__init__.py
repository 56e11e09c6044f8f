"""One client: its data, its model, its restriction maps, its algorithm, and the process that they live in."""
