"""What is wrong with the user's data, in one line."""

from ...topology.errors import UserError


class DataError(UserError):
    """The message names the key or the file, its value, and what is allowed."""
