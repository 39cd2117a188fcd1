"""Processes give the numbers of one: what is sent to them arrives, and comes back."""

import joblib
import numpy as np
from scipy.sparse import coo_array
from sklearn.model_selection import GridSearchCV

from polyad import CP, LabelledTensor
from polyad.core.threads import available_threads
from polyad.datasets import make_low_rank
from polyad.metrics import evaluate_features
from polyad.selection import select_rank


def test_processes_give_the_numbers_of_one(monkeypatch):
    """All in one test, since a process takes seconds to import; threads are tested elsewhere."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    X = make_low_rank((30, 6, 5), 2, noise=0.1, random_state=0)[0]
    y = (X[:, 0, 0] > np.median(X[:, 0, 0])).astype(int)

    def choice(n_jobs):
        methods = ["heldout", "stability", "core_consistency"]
        return select_rank(
            CP(max_iter=5000), X, [1, 2], method=methods, n_repeats=2, random_state=0, n_jobs=n_jobs
        ).table

    def features(n_jobs):
        return evaluate_features(X[:, 0], y, cv=2, random_state=0, n_jobs=n_jobs).scores.tolist()

    def folds(n_jobs, array):
        data = LabelledTensor(array, modes=("sample", "b", "c"))
        search = GridSearchCV(CP(random_state=0), {"n_components": [1, 2]}, cv=3, n_jobs=n_jobs)
        return search.fit(data).cv_results_["mean_test_score"].tolist()

    with joblib.parallel_config(backend="loky"):
        # They share the processors, by OMP_NUM_THREADS.
        threads = joblib.Parallel(n_jobs=2)(joblib.delayed(available_threads)() for _ in range(2))
        assert max(threads) <= max(1, joblib.cpu_count() // 2)
        assert choice(2).equals(choice(1))
        assert features(2) == features(1)
        assert folds(2, X) == folds(1, X)
        assert folds(2, coo_array(X)) == folds(1, coo_array(X))
