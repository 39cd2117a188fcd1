import os

import pytest
from hypothesis import HealthCheck, settings
from joblib.externals.loky import reusable_executor

# scikit-learn's checks of array-API input need it, before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# The first call of a kernel compiles it: time limits of single examples would fail on every fresh
# machine and nowhere else, and those of drawing them on a busy one.
settings.register_profile("polyad", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("polyad")


@pytest.fixture(autouse=True, scope="module")
def no_idle_workers():
    """End joblib's processes: those that idle end themselves later, at times in the next fit."""
    yield
    pool = reusable_executor._executor
    if pool is not None:
        pool.shutdown(wait=True, kill_workers=True)
