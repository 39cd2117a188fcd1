import os

# scikit-learn's checks of array-API input need it, before SciPy is imported.
os.environ.setdefault("SCIPY_ARRAY_API", "1")
