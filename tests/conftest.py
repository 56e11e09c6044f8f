"""For all tests."""

import os

from sheafgossip.launcher import ONE_THREAD

os.environ.update(ONE_THREAD)  # as every command does before NumPy is loaded, or bits differ

pytest_plugins = ["runs"]
