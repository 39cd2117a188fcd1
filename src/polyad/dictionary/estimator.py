"""WassersteinDictionary and WassersteinCPDictionary: the scikit-learn surface of dictionaries."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from polyad.core.arrays import namespace_of, to_numpy
from polyad.dictionary.family import DICTIONARY_CONSTRAINTS, DictionaryFamily
from polyad.estimators import saving
from polyad.estimators.base import Learned
from polyad.estimators.documentation import documented
from polyad.estimators.kruskal import KruskalLearned, KruskalResult
from polyad.exceptions import ModelFileError
from polyad.tensor.kruskal import KruskalTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polyad.core.arrays import Array
    from polyad.transport.geometry import Geometry


def _atoms_rule(value: Any, sizes: saving.Sizes) -> str:
    """Ask for atoms over the grid, each of mass one."""
    shape = [f"n{mode}" for mode in range(1, sizes["N"])]
    problem = saving.array("R", *shape, low=0.0)(value, sizes)
    if not problem and (np.abs(value.reshape(len(value), -1).sum(axis=1) - 1.0) > 1e-3).any():
        problem = "has atoms whose mass is not one"
    return problem


def _factors_rule(value: Any, sizes: saving.Sizes) -> str:
    """Ask for factors, of which those of the atoms have columns of mass one."""
    problem = saving.per_mode(saving.array("n", "R", low=0.0))(value, sizes)
    if not problem and any((np.abs(own.sum(axis=0) - 1.0) > 1e-3).any() for own in value[1:]):
        problem = "has margins of atoms whose mass is not one"
    return problem


@dataclasses.dataclass(frozen=True, kw_only=True)
class DictionaryLearned(Learned):
    """Atoms, codes, and the masses of samples."""

    atoms_: Array = saving.attribute(_atoms_rule)
    codes_: Array = saving.attribute(saving.array("n0", "R", shares=True))
    masses_: Array = saving.attribute(saving.array("n0", low=0.0))
    epsilon_: float = saving.attribute(saving.number(0.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CPDictionaryLearned(KruskalLearned):
    """Factors of codes and atoms, and the masses of samples."""

    factors_: list[Array] = saving.attribute(_factors_rule)
    masses_: Array = saving.attribute(saving.array("n0", low=0.0))
    epsilon_: float = saving.attribute(saving.number(0.0))


@documented
class WassersteinDictionary(DictionaryFamily):
    r"""Dictionary of distributions whose mixtures are near samples in transport (dWDL).

    Samples are images, histograms or joint distributions over a grid. Each is normalised to mass
    one, and modelled as a mixture of atoms, which are distributions over the same grid:

    .. math:: \min_{D, \Lambda} \sum_i W_\varepsilon(x_i, D \lambda_i)

    where :math:`W_\varepsilon` is the least cost of moving the mass of one to the other, with an
    entropy term. A shape that is moved by a pixel is then still near, where the squared error sees
    two shapes that have nothing in common.

    Mode 0 of X holds the samples, all other modes are axes of the grid: images have the shape
    (n_samples, height, width). A matrix is taken as histograms over a line, one in each row. Flat
    images, such as most tables of pixels, are ``X.reshape(-1, height, width)`` first; otherwise the
    end of a row of pixels is beside the start of the next.

    Parameters
    ----------
    n_components : int, default=2
        The number of atoms.
    init : {'samples', 'random'}, default='samples'
        Atoms to begin with: blurred samples, or Dirichlet.
    {n_init, max_iter, tol}
    metric : {'sqeuclidean', 'euclidean', 'cityblock'} or array, default='sqeuclidean'
        What it costs to move mass between cells: a distance between the points of the grid, whose
        axes run from 0 to 1, or a matrix of the cells, the last mode running fastest, such as
        distances in a graph: from the cells of samples, its rows, to those of models. Squared
        and city-block distances are quickest. The squared distance is 1 along an axis, so 2 between
        the far corners of an image, where :func:`~polyad.transport.grid_cost` has 1: ``epsilon`` is
        in the unit of the metric.
    periodic : bool, default=False
        Whether the end of each axis is beside its start (a torus), as hours of a day are.
    axis_weights : sequence of float or None, default=None
        What the coordinates of each axis are multiplied by.
    epsilon : 'auto' or float, default='auto'
        The strength of the entropy, in the unit of the metric. It blurs: a sample is met by a model
        that is its blur, of a width of about ``sqrt(epsilon / 2)`` for squared distances, and atoms
        lose finer details. Smaller numbers are sharper and take longer, much longer below the cost
        of a move to the next cell. ``'auto'`` is that cost, or a 200th of the largest cost (0.01
        for images) if that is more. Scores and objectives of different numbers do not compare: a
        grid search by ``score`` tends to the largest.
    tau : float or (float, float), default=0.001
        The weights of the proximal terms of codes and of atoms, the latter times the number of
        samples. Larger ones make smaller steps. Zero is allowed.
    debias : bool, default=False
        Whether half the losses of sample and model to themselves are taken off (the Sinkhorn
        divergence): atoms are then not blurred by the entropy, and a fit takes several times as
        long. ``score`` and ``objective_`` are of that loss, which is zero for equal ones.
    batch_size : int, default=None
        Samples after which the atoms are updated, which takes less memory and, for many samples,
        fewer sweeps. All by default. A sweep over batches that raises the objective is made again
        over all samples.
    {time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    atoms_ : array of shape (n_components, n_1, ...)
        The atoms, each of mass one; the most used first.
    components_ : array of shape (n_components, n_1, ...)
        The same as ``atoms_``, by the name that it has in other estimators.
    codes_ : array of shape (n_samples, n_components)
        The shares of the atoms in each sample, which sum to one.
    masses_ : array of shape (n_samples,)
        The mass that each sample had.
    epsilon_ : float
        The strength of the entropy, also where ``epsilon='auto'``.
    {labels_, modes_}
    objective_ : float
        The sum of the losses of the samples, above the lowest that any models have: those of
        samples that are blurred by the entropy.
    {history_, n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    Blocks are updated in turn, each with a proximal term (BCD-PR): the codes, each sample for
    itself, and the atoms. Both are convex problems, solved by Newton steps in primal and dual up to
    a duality gap that falls with the progress of the fit; the objective never rises. Between sweeps
    it is known to a part of that gap, and at the end, of the final codes, to rounding. The codes of
    ``transform``, and those of the fit, minimise the loss for the atoms that were learned, with
    a ridge of ``1e-4 * epsilon`` that makes them unique.

    Numbers are double precision inside. Memory is about two dozen arrays of the size of X.

    References
    ----------
    D. Kwon, H. Lyu, "Complexity of Block Coordinate Descent with Proximal Regularization and
    Applications to Wasserstein CP-dictionary Learning", ICML 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import WassersteinDictionary
    >>> t = np.linspace(0, 1, 20)
    >>> bumps = np.exp(-((t - np.array([[0.25], [0.75]])) ** 2) / 0.01)
    >>> shares = np.random.default_rng(0).dirichlet([1, 1], 15)
    >>> model = WassersteinDictionary(2, epsilon=0.005, random_state=0).fit(shares @ bumps)
    >>> sorted(t[model.atoms_.argmax(axis=1)].round(2).tolist())
    [0.26, 0.74]
    """

    _learns = DictionaryLearned
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = DICTIONARY_CONSTRAINTS

    atoms_: Array
    codes_: Array
    masses_: Array
    epsilon_: float

    def __init__(
        self,
        n_components: int = 2,
        *,
        init: str = "samples",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        metric: Any = "sqeuclidean",
        periodic: bool = False,
        axis_weights: Any = None,
        epsilon: Any = "auto",
        tau: Any = 0.001,
        debias: bool = False,
        batch_size: int | None = None,
        time_budget: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.metric = metric
        self.periodic = periodic
        self.axis_weights = axis_weights
        self.epsilon = epsilon
        self.tau = tau
        self.debias = debias
        self.batch_size = batch_size
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    @property
    def components_(self) -> Array:
        """The atoms, by the name that they have in other estimators."""
        return self._model().atoms_

    def _mixtures(self, codes: Array) -> Array:
        atoms = self._model().atoms_
        xp = namespace_of(atoms)
        flat = xp.matmul(codes, xp.reshape(atoms, (atoms.shape[0], -1)))
        return xp.reshape(flat, (-1, *atoms.shape[1:]))

    def _planes(self, n_atoms: int) -> np.ndarray:
        atoms = to_numpy(self._model().atoms_)[:n_atoms]
        return np.asarray(atoms.sum(axis=tuple(range(3, atoms.ndim))))

    def _compared(self) -> KruskalTensor:
        atoms = to_numpy(self._model().atoms_)
        columns = atoms.reshape(len(atoms), -1).T
        usage = to_numpy(self.codes_).sum(axis=0)
        return KruskalTensor(usage, [np.ones((1, len(atoms)), columns.dtype), columns])

    def _modes(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return (math.prod(grid),)

    def _atom_factors(self, learned: Any) -> list[Array]:
        atoms = learned.atoms_
        return [namespace_of(atoms).reshape(atoms, (atoms.shape[0], -1)).T]

    def _made(
        self, codes: Array, atoms: Sequence[Array], masses: Array, geometry: Geometry
    ) -> DictionaryLearned:
        xp = namespace_of(codes)
        rows = xp.reshape(xp.asarray(atoms[0].T, copy=True), (-1, *geometry.shape))
        return DictionaryLearned(
            atoms_=rows, codes_=codes, masses_=masses, epsilon_=geometry.epsilon
        )

    @property
    def _features_of_fit(self) -> Array:
        return self.codes_

    @property
    def _fitted_shape(self) -> tuple[int, ...]:
        return (int(self.codes_.shape[0]), *map(int, self.atoms_.shape[1:]))

    @property
    def _n_features_out(self) -> int:
        return int(self.atoms_.shape[0])

    @classmethod
    def _sizes(cls, learned: Any) -> saving.Sizes:
        atoms, codes = learned.get("atoms_"), learned.get("codes_")
        if not isinstance(atoms, np.ndarray) or atoms.ndim < 2 or not atoms.size:
            message = "atoms_ is not an array of atoms"
            raise ModelFileError(message)
        if not isinstance(codes, np.ndarray) or codes.ndim != 2 or not codes.size:
            message = "codes_ is not a matrix"
            raise ModelFileError(message)
        shape = {f"n{mode}": size for mode, size in enumerate(atoms.shape) if mode}
        return {**shape, "N": atoms.ndim, "n0": len(codes), "R": len(atoms)}


@documented
class WassersteinCPDictionary(KruskalResult, DictionaryFamily):
    r"""Dictionary of product distributions whose mixtures are near samples in transport (WCPDL).

    As :class:`~polyad.WassersteinDictionary`, with atoms that are outer products of a distribution
    for each mode of the grid, :math:`u^{(1)}_s \circ \dots \circ u^{(d)}_s`: the joint
    distributions of samples are mixtures of independent ones, each told by its margins. With one
    mode both are the same.

    Parameters
    ----------
    n_components : int, default=2
        The number of atoms.
    init : {'samples', 'random'}, default='samples'
        Factors to begin with: the margins of blurred samples, or Dirichlet.
    {n_init, max_iter, tol}
    metric : {'sqeuclidean', 'euclidean', 'cityblock'} or array, default='sqeuclidean'
        What it costs to move mass between cells: a distance between the points of the grid, whose
        axes run from 0 to 1, or a matrix from the cells of samples to those of models, the last
        mode running fastest. The squared distance is 1 along an axis, so 2 between the far corners
        of two.
    periodic : bool, default=False
        Whether the end of each axis is beside its start (a torus), as hours of a day are.
    axis_weights : sequence of float or None, default=None
        What the coordinates of each axis are multiplied by.
    epsilon : 'auto' or float, default='auto'
        The strength of the entropy, in the unit of the metric: see
        :class:`~polyad.WassersteinDictionary`.
    tau : float or (float, float), default=0.001
        The weights of the proximal terms of codes and of the other factors, the latter times the
        number of samples.
    debias : bool, default=False
        Whether the blur of the entropy is taken off: see :class:`~polyad.WassersteinDictionary`.
    batch_size : int, default=None
        Samples after which the factors of the atoms are updated; all by default.
    {time_budget, random_state, n_jobs, warm_start, checkpoint, callbacks, verbose}

    Attributes
    ----------
    factors_ : list of arrays of shape (n_k, n_components)
        Of the samples, the codes divided by ``weights_``, and of each mode of the grid the margins
        of the atoms: all columns sum to one.
    {weights_}
        The sum of the codes of each atom.
    {components_, kruskal_}
    atoms_ : array of shape (n_components, n_1, ...)
        The same as ``components_``: distributions over the grid.
    codes_ : array of shape (n_samples, n_components)
        The shares of the atoms in each sample, which sum to one.
    masses_ : array of shape (n_samples,)
        The mass that each sample had.
    epsilon_ : float
        The strength of the entropy, also where ``epsilon='auto'``.
    {labels_, modes_}
    objective_ : float
        The sum of the losses of the samples, above the lowest that any models have.
    {history_, n_iter_, status_, n_samples_seen_, n_features_in_, feature_names_in_}

    Notes
    -----
    See :class:`~polyad.WassersteinDictionary` for the method, and for how X is read.

    References
    ----------
    D. Kwon, H. Lyu, "Complexity of Block Coordinate Descent with Proximal Regularization and
    Applications to Wasserstein CP-dictionary Learning", ICML 2023.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad import WassersteinCPDictionary
    >>> rng = np.random.default_rng(0)
    >>> U, V = rng.dirichlet(np.ones(8), 2), rng.dirichlet(np.ones(6), 2)
    >>> X = np.einsum("ir,rj,rk->ijk", rng.dirichlet([1, 1], 20), U, V)
    >>> model = WassersteinCPDictionary(2, epsilon=0.05, random_state=0).fit(X)
    >>> [factor.shape for factor in model.factors_]
    [(20, 2), (8, 2), (6, 2)]
    """

    _learns = CPDictionaryLearned
    _score_name: ClassVar[str] = DictionaryFamily._score_name
    _max_iter_advice: ClassVar[str] = ""  # shares cannot cancel each other
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = DICTIONARY_CONSTRAINTS

    masses_: Array
    epsilon_: float

    def __init__(
        self,
        n_components: int = 2,
        *,
        init: str = "samples",
        n_init: int = 1,
        max_iter: int = 200,
        tol: float = 1e-3,
        metric: Any = "sqeuclidean",
        periodic: bool = False,
        axis_weights: Any = None,
        epsilon: Any = "auto",
        tau: Any = 0.001,
        debias: bool = False,
        batch_size: int | None = None,
        time_budget: float | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        warm_start: bool = False,
        checkpoint: Any = None,
        callbacks: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.metric = metric
        self.periodic = periodic
        self.axis_weights = axis_weights
        self.epsilon = epsilon
        self.tau = tau
        self.debias = debias
        self.batch_size = batch_size
        self.time_budget = time_budget
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.warm_start = warm_start
        self.checkpoint = checkpoint
        self.callbacks = callbacks
        self.verbose = verbose

    inverse_transform = DictionaryFamily.inverse_transform

    @property
    def codes_(self) -> Array:
        """The shares of the atoms in each sample, which sum to one: ``weights_ * factors_[0]``."""
        check_is_fitted(self)
        return self._features_of_fit

    @property
    def atoms_(self) -> Array:
        """The atoms, each of mass one: the products of their margins, as ``components_``."""
        return self.components_

    def _mixtures(self, codes: Array) -> Array:
        return KruskalResult.inverse_transform(self, codes)

    def _planes(self, n_atoms: int) -> np.ndarray:
        # The margins of the other modes sum to one.
        first, *second = (to_numpy(factor)[:, :n_atoms].T for factor in self.factors_[1:3])
        return first[:, :, None] * second[0][:, None, :] if second else first

    def _compared(self) -> KruskalTensor:
        return KruskalTensor(self.weights_, self.factors_[1:])

    def _modes(self, grid: tuple[int, ...]) -> tuple[int, ...]:
        return grid

    def _atom_factors(self, learned: Any) -> list[Array]:
        return list(learned.factors_[1:])

    def _made(
        self, codes: Array, atoms: Sequence[Array], masses: Array, geometry: Geometry
    ) -> CPDictionaryLearned:
        xp = namespace_of(codes)
        weights = xp.sum(codes, axis=0)
        safe = xp.where(weights > 0, weights, xp.ones_like(weights))
        factors = [codes / safe[None, :], *atoms]
        return CPDictionaryLearned(
            factors_=factors, weights_=weights, masses_=masses, epsilon_=geometry.epsilon
        )

    def _check_restored(self) -> None:
        super()._check_restored()
        if (np.abs(self._features_of_fit.sum(axis=1) - 1.0) > 1e-3).any():
            message = "factors_ and weights_ do not give codes that sum to one"
            raise ModelFileError(message)
