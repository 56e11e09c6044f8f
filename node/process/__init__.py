"""The process of a client: its course, its records, its checkpoints."""
