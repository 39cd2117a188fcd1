"""SupervisedCP: the scikit-learn surface."""

from __future__ import annotations

import dataclasses
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from polyad.core.arrays import Array, to_numpy
from polyad.core.sklearn_compat import Interval
from polyad.cp.family import COMMON_CONSTRAINTS, NonnegativeLearned, read_weights
from polyad.cp.nonnegative.estimator import NonnegativeFamily
from polyad.cp.problem import Problem, build_problem
from polyad.cp.supervised.classifier import (
    fit_logistic,
    read_labels,
    scores,
    softmax,
    split_unlabelled,
)
from polyad.cp.supervised.solver import SupervisedSolver
from polyad.data.label_values import in_order_of
from polyad.estimators import saving
from polyad.estimators.documentation import documented
from polyad.exceptions import InvalidInputError, ModelFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from polyad.data.readers import TensorInput
    from polyad.data.validation import Missing
    from polyad.fitting import Iteration

# Features whose spread is this part of their size are constant but for rounding.
_FLAT = 1e-12


@dataclasses.dataclass(frozen=True, kw_only=True)
class SupervisedLearned(NonnegativeLearned):
    """Components, and a classifier of their features."""

    classes_: np.ndarray = saving.attribute(saving.labels("n_classes", kinds="Uiufb"))
    coef_: np.ndarray = saving.attribute(saving.array("n_scores", "R"))
    intercept_: np.ndarray = saving.attribute(saving.array("n_scores"))


@documented
class SupervisedCP(ClassifierMixin, NonnegativeFamily):
    r"""Nonnegative CP decomposition whose components also tell the classes of the samples apart.

    Minimises

    .. math:: \tfrac12 \Big\|X - \sum_{r=1}^R a_r \circ b_r \circ \dots\Big\|^2
        + \tfrac{\alpha}{2} \|X\|^2 D
        + \sum_k \lambda_k \sum_{ir} A^{(k)}_{ir} + \tfrac{\mu}{2} \|A\|^2

    with the loss of the labels

    .. math:: D = \tfrac{1}{n} \sum_{i \in L} \ell\big(y_i;\, \tfrac{1}{\sigma} a_i V + c\big)
        + \tfrac{\rho}{2} \|V\|^2

    over nonnegative factors, weights :math:`V` and intercept :math:`c`. :math:`L` are the
    :math:`n` samples with a label, :math:`\ell` is the (multinomial) logistic loss of the class
    given the row of the sample, and :math:`\sigma` is the root mean square size of a sample. The
    columns of all modes but the samples have length one, so that the size of a component is in
    its samples.

    Use it if a decomposition is meant for a prediction and few components must do. Some samples
    may lack a label. If labels are of no interest, use :class:`NonnegativeCP`; if only the
    prediction counts, compare it with a classifier on the data itself.

    Parameters
    ----------
    {n_components}
    label_weight : float, default=0.1
        The weight :math:`\alpha` of the label term. It has no unit: with 1, a mean logistic loss
        of one counts as much as all of the data. With 0 the labels have no say.
    label_ridge : float, default=0.001
        The weight :math:`\rho` of the squared weights of the classifier. It has no unit either. It
        keeps components that explain little of the data from carrying the labels alone.
    {init, n_init}
        ``'auto'`` is 3 for a search, and 1 otherwise.
    {max_iter}
        An iteration is a sweep over the modes.
    {tol, sparsity}
    ridge : float, default=0.0
        The weight :math:`\mu` of half the squared entries of the factor of the samples. The other
        modes need none: their columns have length one.
    {fixed_modes}
        The samples cannot be fixed: labels act through them.
    {missing, time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        The classes, sorted.
    coef_ : array of shape (1 or n_classes, n_components)
        The weights of the features in the scores of the classes; one row for two classes.
    intercept_ : array of shape (1 or n_classes,)
        The scores of a sample whose features are zero.
    {weights_}
    factors_ : list of arrays of shape (n_k, n_components)
        One nonnegative factor per mode, with columns of length one. The rows of labelled
        samples were drawn towards their classes.
    {components_, kruskal_, labels_}
        The classes are ``classes_``.
    {modes_}
    objective_ : float
        The objective of the model, with the classifier that is best for its samples.
    {history_}
        Also the relative error and the label loss.
    {n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    **Features know no labels.** ``transform`` finds the rows of samples from the data alone,
    since new samples have no label, and ``fit_transform`` returns the same for the training
    samples. ``factors_[0]`` holds other rows: those of the fit, which have seen the labels.
    Never judge a classifier on those. The components themselves have seen the labels of the
    training samples too; judge by samples that had no part in ``fit``.

    **The classifier.** The one inside the objective belongs to rows that have seen labels. For
    ``predict``, another is fitted to the rows that ``transform`` gives for the training samples,
    brought to mean zero and variance one, with the same ``label_ridge``.

    A sweep costs that of :class:`NonnegativeCP` and some Newton steps on the labelled rows, which
    need no pass over the data. The objective never rises.
    Sparse data with ``missing='unobserved'`` needs memory for one matrix of n_components² per
    entry of a mode.

    The model is after Kim et al., not identical with theirs: the weights are free of units, there
    may be more than two classes and samples without a label, and the method is monotone. The SWIFT
    paper has it as a baseline.

    References
    ----------
    Y. Kim, R. El-Kareh, J. Sun, H. Yu, X. Jiang, "Discriminative and Distinct Phenotyping by
    Constrained Tensor Factorization", Scientific Reports 7 (2017),
    doi:10.1038/s41598-017-01139-y.

    D. Böhning, "Multinomial Logistic Regression Algorithm", Annals of the Institute of
    Statistical Mathematics 44 (1992), doi:10.1007/BF00048682.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import SupervisedCP
    >>> from polyad.datasets import make_low_rank
    >>> X, truth = make_low_rank((60, 8, 6), 3, nonnegative=True, noise=0.3, random_state=0)
    >>> y = np.where(truth.factors[0][:, 2] > np.median(truth.factors[0][:, 2]), "ill", "well")
    >>> model = SupervisedCP(2, random_state=0).fit(X[:40], y[:40])
    >>> model.classes_
    array(['ill', 'well'], dtype='<U4')
    >>> model.score(X[40:], y[40:]) > 0.5
    True
    """

    _score_name: ClassVar[str] = "accuracy"
    _learns = SupervisedLearned
    classes_: np.ndarray
    coef_: np.ndarray
    intercept_: np.ndarray

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **COMMON_CONSTRAINTS,
        "label_weight": [Interval(Real, 0, None, closed="left")],
        "label_ridge": [Interval(Real, 0, None, closed="left")],
        "sparsity": [Interval(Real, 0, None, closed="left"), "array-like"],
        "ridge": [Interval(Real, 0, None, closed="left")],
    }

    def __init__(
        self,
        n_components: int = 2,
        *,
        label_weight: float = 0.1,
        label_ridge: float = 0.001,
        init: Any = "svd",
        n_init: int | str = "auto",
        max_iter: int = 1000,
        tol: float = 1e-5,
        sparsity: float | Sequence[float] = 0.0,
        ridge: float = 0.0,
        fixed_modes: Iterable[int] = (),
        missing: Missing = "zero",
        time_budget: float | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Sequence[Callable[[Iteration], object]] | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.label_weight = label_weight
        self.label_ridge = label_ridge
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.sparsity = sparsity
        self.ridge = ridge
        self.fixed_modes = fixed_modes
        self.missing = missing
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, *, mask: Any = None) -> Self:
        """Decompose a tensor such that its components tell the classes of the samples apart.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            Dense, sparse or labelled data; mode 0 holds the samples. NaN marks missing entries of
            dense data.
        y : array-like of shape (n_samples,)
            The class of each sample, of any type. Samples without one are marked by -1 where
            classes are integers, and by None or NaN otherwise. A pandas Series is matched by its
            index if the samples have labels.
        {mask}
        """
        if y is None:
            # The wording of scikit-learn, which its users search for.
            message = (
                f"{type(self).__name__} requires y to be passed, but the target y is None. Give "
                "the classes of the samples, or use NonnegativeCP."
            )
            raise InvalidInputError(message)
        self._fit(X, mask, y)
        self._report_ending()
        return self

    def fit_transform(self, X: Any, y: Any = None, *, mask: Any = None) -> Array:
        """Decompose a tensor and return the features of its samples, found without their classes.

        Parameters
        ----------
        X : tensor-like of shape (n_samples, n_1, ...)
            The data, as in ``fit``.
        y : array-like of shape (n_samples,)
            The class of each sample, as in ``fit``.
        {mask}

        Returns
        -------
        array of shape (n_samples, n_components)
            What ``transform`` returns for the same samples. The rows of ``factors_[0]`` differ:
            they have seen the classes.
        """
        return self.fit(X, y, mask=mask).transform(X, mask=mask)

    def decision_function(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the scores of the classes.

        Parameters
        ----------
        {X, mask}

        Returns
        -------
        array of shape (n_samples,) or (n_samples, n_classes)
            For two classes the log-odds of the second.
        """
        return self._scores_of(self._transformed(X, mask)[0])

    def _scores_of(self, features: Array) -> np.ndarray:
        rows = to_numpy(features).astype(np.float64)
        z = scores(rows, self.coef_.T, self.intercept_)
        return z[:, 0] if len(self.classes_) == 2 else z

    def _classes_of(self, features: Array) -> np.ndarray:
        z = self._scores_of(features)
        number = (z > 0).astype(int) if z.ndim == 1 else np.argmax(z, axis=1)
        return np.asarray(self.classes_[number])

    def predict_proba(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the probabilities of the classes, in the order of ``classes_``.

        Parameters
        ----------
        {X, mask}

        Returns
        -------
        array of shape (n_samples, n_classes)
        """
        z = self.decision_function(X, mask=mask)
        return softmax(np.stack([np.zeros_like(z), z], axis=1) if z.ndim == 1 else z)

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the most probable class of each sample.

        Parameters
        ----------
        {X, mask}

        Returns
        -------
        array of shape (n_samples,)
        """
        return self._classes_of(self._transformed(X, mask)[0])

    # A classifier cannot be scored without classes.
    def score(  # type: ignore[override]
        self, X: Any, y: Any, sample_weight: Any = None, *, mask: Any = None
    ) -> float:
        """Return the part of the labelled samples whose class is predicted.

        As for every classifier of scikit-learn. How well the components describe the data is told
        by :func:`polyad.metrics.explained_variation`.

        Parameters
        ----------
        {X}
        y : array-like of shape (n_samples,)
            Their classes; samples without one do not count.
        sample_weight : array-like of shape (n_samples,), default=None
            The weights of the samples.
        {mask}
        """
        features, samples = self._transformed(X, mask)
        predicted = self._classes_of(features)
        values, known = self._read_target(y, samples)
        if len(known) != len(predicted):
            message = f"X has {len(predicted)} samples and y has {len(known)}."
            raise InvalidInputError(message)
        weight = None
        if sample_weight is not None:
            weight = np.asarray(in_order_of(sample_weight, samples, "sample_weight"))
        if weight is not None and weight.shape != known.shape:
            message = (
                f"sample_weight has the shape {weight.shape}; one number for each of the "
                f"{len(known)} samples is needed."
            )
            raise InvalidInputError(message)
        weight = None if weight is None else weight[known]
        return float(accuracy_score(values, predicted[known], sample_weight=weight))

    def _read_target(self, y: Any, samples: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the classes of the labelled samples, and which samples those are."""
        y = in_order_of(y, samples)
        plain = to_numpy(y) if type(y).__module__.startswith("torch") else y
        target = column_or_1d(np.asarray(plain), warn=True)
        if target.dtype.kind == "f" and np.isinf(target).any():
            # The wording of scikit-learn, which its users search for.
            message = (
                f"Input y contains infinity or a value too large for {target.dtype!r}. Mark "
                "samples without a class by NaN."
            )
            raise InvalidInputError(message)
        values, known = split_unlabelled(target)
        if len(values):
            try:
                check_classification_targets(values)
            except ValueError as error:
                message = (
                    f"{error} Group the numbers of y into classes, for example by np.digitize."
                )
                raise InvalidInputError(message) from error
        return values, known

    def _problem(self, given: TensorInput) -> Problem:
        return build_problem(given.data, self.missing)

    def _read(self, given: TensorInput, y: Any) -> Problem:
        problem = cast("Problem", super()._read(given, y))
        values, known = self._read_target(y, given.labels[0])
        if len(known) != given.shape[0]:
            message = (
                f"Found input variables with inconsistent numbers of samples: X has "
                f"{given.shape[0]} and y has {len(known)}. Give one class per sample."
            )
            raise InvalidInputError(message)
        problem.labels = read_labels(values, known)
        if 0 in problem.fixed_modes:
            message = (
                "fixed_modes has mode 0, the samples, through which the labels act. Free it, or "
                "use NonnegativeCP and a classifier on its features."
            )
            raise InvalidInputError(message)
        return problem

    def _solver(self, problem: Problem) -> SupervisedSolver:
        return SupervisedSolver(
            problem,
            problem.labels,
            label_weight=float(self.label_weight),
            label_ridge=float(self.label_ridge),
            sparsity=self._sparsities(len(problem.shape)),
            ridge=float(self.ridge),
            fixed_modes=problem.fixed_modes,
        )

    def _sparsities(self, n_modes: int) -> list[float]:
        return read_weights("sparsity", self.sparsity, n_modes)

    def _learned(self, solver: Any, state: Any) -> SupervisedLearned:
        learned = super()._learned(solver, state)
        # Rows as transform will find them: new samples have no labels that could help.
        rows = to_numpy(self._rows(solver.problem, learned)).astype(np.float64)
        labelled = rows[solver.labels.positions]
        centre, spread = labelled.mean(axis=0), labelled.std(axis=0)
        # A feature that never changes tells nothing.
        inverse = np.where(spread > _FLAT * centre, 1.0 / np.where(spread > 0, spread, 1.0), 0.0)
        standard = (labelled - centre) * inverse
        weights, intercept = fit_logistic(standard, solver.labels, solver.label_ridge)
        weights = weights * inverse[:, None]
        intercept = intercept - centre @ weights
        weights = weights * 2.0**-solver.problem.exponent
        if solver.labels.n_classes == 2:
            weights, intercept = weights[:, 1:] - weights[:, :1], intercept[1:] - intercept[:1]
        return SupervisedLearned(
            **vars(learned),
            classes_=solver.labels.classes,
            coef_=np.ascontiguousarray(weights.T),
            intercept_=intercept,
        )

    def _is_nothing(self, problem: Any, learned: Any) -> bool:
        # The labels alone keep rows of the fit above zero, where transform finds nothing.
        is_flat = not learned.coef_.any() and not to_numpy(self._rows(problem, learned)).any()
        return is_flat or super()._is_nothing(problem, learned)

    def _rows(self, problem: Problem, learned: NonnegativeLearned) -> Array:
        sparsity = self._sparsities(len(problem.shape))
        return self._nonnegative_rows(problem, learned, sparsity[0], self.ridge)

    def _check_restored(self) -> None:
        super()._check_restored()
        n_classes, n_scores = len(self.classes_), len(self.intercept_)
        if n_classes < 2 or n_scores != (1 if n_classes == 2 else n_classes):
            message = f"classes_ has {n_classes} classes and intercept_ {n_scores} numbers"
            raise ModelFileError(message)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
