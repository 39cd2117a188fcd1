import os

from hypothesis import settings

# scikit-learn's checks of array-API input need it, before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")

# The first call of a kernel compiles it: time limits of single examples would fail on every fresh
# machine and nowhere else.
settings.register_profile("polyad", deadline=None)
settings.load_profile("polyad")
