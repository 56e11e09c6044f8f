"""From a configuration to everything that must exist before the first process starts."""
