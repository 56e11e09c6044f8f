"""For all tests."""

import gc
import os

from hypothesis import HealthCheck, settings

from sheafgossip.launcher import ONE_THREAD

os.environ.update(ONE_THREAD)  # as every command does before NumPy is loaded, or bits differ

# a busy machine is no fault; a folder that all examples write into is none either
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
settings.load_profile("ours")
pytest_plugins = ["runs"]


def pytest_collection_finish() -> None:
    gc.freeze()  # a million objects of PyTorch and pytest itself, which no collection need look at again
