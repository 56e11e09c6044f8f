"""The user's door: command line, configuration, and the processes of a run from start to end."""
