"""For all tests."""

from sheafgossip.launcher import one_thread

one_thread.choose()  # as every command does, before NumPy is loaded: another number of threads gives other bits

pytest_plugins = ["runs"]
