"""The user's side: command line, configuration, and the processes of a run from start to end."""
