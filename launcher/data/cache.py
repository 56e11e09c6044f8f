"""Where downloaded data sets are kept between runs."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$SHEAFGOSSIP_CACHE, or else ~/.cache/sheafgossip."""
    return Path(os.environ.get("SHEAFGOSSIP_CACHE") or Path.home() / ".cache" / "sheafgossip")
