"""One run from start to end: its folder, its course, its resumption."""
