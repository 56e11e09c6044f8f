"""The configuration of a run: its sections, how it is read, checked, explained and documented."""
