"""Methods against oracles that know no messages: clients are threads, which is proven to change no bit."""

import pytest


@pytest.fixture
def run(run_in_threads):
    return run_in_threads
