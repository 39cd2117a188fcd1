import gc
import os

# Processes that test side by side share the processors: threads that wait for their turn in a
# product of matrices use what the other processes need. Before NumPy is imported.
if "PYTEST_XDIST_WORKER" in os.environ:
    share = max(1, (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"]))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(share))

import pytest
from hypothesis import HealthCheck, settings
from joblib.externals.loky import reusable_executor
from threadpoolctl import threadpool_limits

# scikit-learn's checks of array-API input need it, before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# The first call of a kernel compiles it: time limits of single examples would fail on every fresh
# machine and nowhere else, and those of drawing them on a busy one.
settings.register_profile(
    "polyad", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("polyad")

# Collecting makes millions of objects that stay: looking through them for garbage takes a third of
# its time. They are left out of later looks too.
gc.disable()

# As for OpenBLAS; OMP_NUM_THREADS would bind polyad's own threads too.
if "PYTEST_XDIST_WORKER" in os.environ:
    import torch

    torch.set_num_threads(share)


def pytest_collection_finish():
    # Of the libraries that tests have loaded by now, such as scikit-learn's own.
    if "PYTEST_XDIST_WORKER" in os.environ:
        threadpool_limits(share, user_api="openmp")
    gc.freeze()
    gc.set_threshold(20_000)
    gc.enable()


@pytest.fixture(autouse=True, scope="module")
def no_idle_workers():
    """End joblib's processes: those that idle end themselves later, at times in the next fit."""
    yield
    pool = reusable_executor._executor
    if pool is not None:
        pool.shutdown(wait=True, kill_workers=True)
