"""What is wrong with the user's data, in one line."""


class DataError(ValueError):
    """The message names the key or the file, its value, and what is allowed."""
