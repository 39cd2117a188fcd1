r"""Second and third moments of three disjoint sets of variables, formed or not.

With :math:`b_j` the rows of a variable (``variables.py``), :math:`\mu_j` their means, and
memberships from a Dirichlet distribution whose parameters sum to :math:`\alpha_0`,

.. math::

   M_{js} &= E[b_j b_s^T] - c_1 \mu_j \mu_s^T = \sum_h \eta_h \theta_{jh} \theta_{sh}^T \\
   M_{jst} &= E[b_j \otimes b_s \otimes b_t] - c_3 (\mu_j \otimes E[b_s \otimes b_t] + \dots)
   + c_2 \mu_j \otimes \mu_s \otimes \mu_t
   = \sum_h \lambda_h \theta_{jh} \otimes \theta_{sh} \otimes \theta_{th}

for different variables :math:`j, s, t`, where :math:`c_1 = \alpha_0 / (\alpha_0 + 1)`, :math:`c_3 =
\alpha_0 / (\alpha_0 + 2)`, :math:`c_2 = 2 \alpha_0^2 / ((\alpha_0 + 1) (\alpha_0 + 2))`,
:math:`\eta_h = \alpha_h / (\alpha_0 (\alpha_0 + 1))` and :math:`\lambda_h = 2 \alpha_h / (\alpha_0
(\alpha_0 + 1) (\alpha_0 + 2))`.

What is missing
    A block that is formed averages each triple of variables over the samples that have all three,
    and each pair over those that have both: consistent if values are missing completely at random,
    however the gaps of different variables depend on each other. A tensor that is not formed has no
    number of samples for each triple. It divides what is observed of a variable by the part of the
    samples that has it, which is consistent if the gaps of different variables are independent too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csr_array

from polyad.core.threads import cut, run_blocks
from polyad.exceptions import InvalidInputError
from polyad.membership.tables import column_names, opened_table
from polyad.membership.variables import Indicators, Table, find_positions, read_columns
from polyad.tensor.dense import DenseTensor
from polyad.tensor.products import kruskal_to_dense

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from polyad.core.arrays import Array

    Matrix = NDArray[np.float64]
    Positions = NDArray[np.int64]

# Entries of sparse rows that are made at a time: a few megabytes.
_ENTRIES_AT_A_TIME = 1 << 20
# Entries of sparse rows that are kept between passes (200 MB); more are made again each time.
_KEPT_ENTRIES = 1 << 24
# Cells of a block that is formed although not forming it is cheaper, because values are missing or
# its signs are needed (512 MB).
_MOST_CELLS = 1 << 26
# Samples among which all inner products are made, for the norm of a tensor that is not formed.
_MOST_PRODUCTS = 1000


@dataclass(frozen=True)
class Constants:
    """The constants of moments, which follow from the sum of the Dirichlet parameters."""

    alpha0: float

    @property
    def pair(self) -> float:
        """Of means in second moments, c1."""
        return self.alpha0 / (self.alpha0 + 1.0)

    @property
    def mixed(self) -> float:
        """Of a mean and a second moment in third moments, c3."""
        return self.alpha0 / (self.alpha0 + 2.0)

    @property
    def means(self) -> float:
        """Of three means in third moments, c2."""
        return 2.0 * self.pair * self.mixed

    @property
    def total(self) -> float:
        """The sum of the third moments of three variables, and of the weights of components."""
        return 2.0 / ((self.alpha0 + 1.0) * (self.alpha0 + 2.0))


def moments(
    X: Any, J: Any, S: Any, T: Any = None, *, alpha0: float = 1.0, kinds: Any = "auto"
) -> np.ndarray:
    r"""Return second or third moments of disjoint sets of columns, less what mixing adds to them.

    .. math::

       M_{js} &= E[b_j b_s^T] - c_1 \mu_j \mu_s^T \\
       M_{jst} &= E[b_j \otimes b_s \otimes b_t] - c_3 (\mu_j \otimes E[b_s \otimes b_t] + \dots)
       + c_2 \mu_j \otimes \mu_s \otimes \mu_t,

    with :math:`c_1 = \alpha_0 / (\alpha_0 + 1)`, :math:`c_3 = \alpha_0 / (\alpha_0 + 2)`,
    :math:`c_2 = 2 c_1 c_3` and :math:`b_j` the zeros and ones of the categories of column j, or
    ``u, 1 - u`` of a number scaled to ``u``. Under a mixed membership model they are sums over the
    components of products of its parameters: a CP decomposition.

    Parameters
    ----------
    X : DataFrame or array of shape (n_samples, n_features)
        Samples, as in :class:`MixedMembership`.
    J, S, T : int, str or sequence of these
        Columns by position or name; without ``T``, second moments are returned.
    alpha0 : float, default=1.0
        The sum of the Dirichlet parameters of the memberships.
    kinds : str or dict, default='auto'
        What the columns are, as in :class:`MixedMembership`.

    Returns
    -------
    array of shape (rows of J, rows of S) or (rows of J, rows of S, rows of T)
        A categorical column has a row for each category, a number two rows. Where values are
        missing, each pair and triple of columns is averaged over the samples that have it.

    Examples
    --------
    >>> import numpy as np
    >>> from polyad.membership import moments
    >>> X = np.random.default_rng(0).integers(3, size=(100, 3))
    >>> M = moments(X, 0, 1, 2, alpha0=1.0)
    >>> M.shape, round(float(M.sum()), 6)
    ((3, 3, 3), 0.333333)
    """
    if not isinstance(alpha0, Real) or not 0 <= alpha0 < math.inf:
        message = f"alpha0={alpha0!r} is not a number from 0 on."
        raise InvalidInputError(message)
    given = opened_table(X, None, is_new=False)
    names = column_names(given)
    table = read_columns(given.data, kinds, names)
    chosen = (J, S) if T is None else (J, S, T)
    sets = [find_positions(own, names, "A set of columns") for own in chosen]
    check_sets(sets)
    return np.asarray(block_moments(table, sets, float(alpha0)))


class MomentTensor:
    """The third moments of three sets of variables as a tensor that is never formed.

    It offers solvers what dense and sparse tensors do. With ``S = O_S B`` and ``T = O_T C`` over
    the samples, the MTTKRP of the first mode is

    ``O_Jᵀ [S*T - c3 (T*sB + S*tC)] / n + mu_J (c2 sB*tC - c3 mean(S*T))ᵀ``,  ``sB = Bᵀ mu_S``.
    """

    dtype = np.dtype(np.float64)
    mode_groups = ((1,), (2,), (0,))

    def __init__(self, table: Table, sets: Sequence[Positions], alpha0: float) -> None:
        self.constants = Constants(alpha0)
        self.n_samples = table.n_samples
        shares = [_observed_shares(table, own) for own in sets]
        self.rows = [
            Indicators(table, own, 1.0 / share if table.has_missing else None)
            for own, share in zip(sets, shares, strict=True)
        ]
        self.shape = tuple(own.n_rows for own in self.rows)
        widest = max(own.n_entries for own in self.rows)
        self._blocks = cut(self.n_samples, max(1, _ENTRIES_AT_A_TIME // widest))
        n_entries = self.n_samples * sum(own.n_entries for own in self.rows)
        self._kept: list[list[csr_array]] = []
        if n_entries <= _KEPT_ENTRIES:
            self._kept = [[own.part(block) for own in self.rows] for block in self._blocks]
        sums = [[part.sum(axis=0) for part in self._parts(k)] for k in range(len(self._blocks))]
        self.means = [np.sum(own, axis=0) / self.n_samples for own in zip(*sums, strict=True)]

    @property
    def thinning(self) -> int:
        """Of how many samples one could be kept in memory; 1 if all are."""
        n_entries = self.n_samples * sum(own.n_entries for own in self.rows)
        return 1 if self._kept else -(-n_entries // _KEPT_ENTRIES)

    def _parts(self, k: int) -> list[csr_array]:
        """Return the rows of the three sets for a block of samples."""
        if self._kept:
            return self._kept[k]
        return [own.part(self._blocks[k]) for own in self.rows]

    def contract(self, factors: Sequence[Array], group: Sequence[int]) -> MomentTensor:
        """Return itself: modes share no pass over the samples, whose products are never kept."""
        return self

    def mttkrp(self, factors: Sequence[Array], mode: int) -> Matrix:
        """Return the matricized tensor times Khatri-Rao product of one mode."""
        c3, c2 = self.constants.mixed, self.constants.means
        second, third = (k for k in range(3) if k != mode)
        s_mean, t_mean = (self.means[k] @ factors[k] for k in (second, third))
        sums: list[Any] = [None] * len(self._blocks)

        def add(k: int) -> None:
            parts = self._parts(k)
            s, t = parts[second] @ factors[second], parts[third] @ factors[third]
            both = s * t
            sums[k] = parts[mode].T @ (both - c3 * (t * s_mean + s * t_mean)), both.sum(axis=0)

        run_blocks(add, ((k,) for k in range(len(self._blocks))))
        # In the order of the samples, whoever was ready first.
        first, both = (sum(own) / self.n_samples for own in zip(*sums, strict=True))
        product: Matrix = first + np.outer(self.means[mode], c2 * s_mean * t_mean - c3 * both)
        return product

    def least_norm_squared(self) -> float:
        """Return a number that the squared norm is not below, and not far below for low ranks.

        Products with unit vectors are not above the norm; those of power steps are large.
        """
        factors = [own[:, None] / np.linalg.norm(own) for own in self.means]
        largest = 0.0
        for mode in range(3):
            product = self.mttkrp(factors, mode)
            largest = float(np.linalg.norm(product))
            factors[mode] = product / max(largest, float(np.finfo(float).tiny))
        return largest**2

    def norm_squared(self) -> float:
        """Return the sum of squares of all entries, at the cost of all pairs of samples.

        NaN where there are too many of them: no solver needs it.
        """
        if self.n_samples > _MOST_PRODUCTS:
            return float("nan")
        c3, c2 = self.constants.mixed, self.constants.means
        pairs, ones, alone = [], [], []
        for mode in range(3):
            rows = np.concatenate(
                [self._parts(k)[mode].toarray() for k in range(len(self._blocks))]
            )
            pairs.append(rows @ rows.T)
            ones.append(rows @ self.means[mode])
            alone.append(float(self.means[mode] @ self.means[mode]))
        # The sum over samples of o s t - c3 (mu s t + o mu t + o s mu), and c2 mu mu mu.
        product = np.prod(pairs, axis=0)
        for x, y, z in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            beside = pairs[y] * pairs[z]
            product -= c3 * (ones[x][:, None] + ones[x][None, :]) * beside
            product += c3**2 * alone[x] * beside
            crossed = ones[x][:, None] * ones[y][None, :]
            product += c3**2 * (crossed + crossed.T) * pairs[z]
        total = product.mean()
        each = np.prod(ones, axis=0)
        for x, y, z in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            each = each - c3 * alone[x] * ones[y] * ones[z]
        return float(total + 2.0 * c2 * each.mean() + c2**2 * np.prod(alone))


def moment_tensor(
    table: Table, sets: Sequence[Positions], alpha0: float, *, formed: bool | None = None
) -> DenseTensor | MomentTensor:
    """Return the third moments of three sets of variables, formed where that is cheaper.

    A sweep over a formed block costs its cells, over one that is not the entries of the samples.
    Where values are missing, a block is formed as long as it fits: it assumes less of them.
    """
    cells = float(np.prod([table.variables.sizes[own].sum() for own in sets]))
    if formed is None:
        entries = table.n_samples * sum(len(own) for own in sets)
        formed = cells < entries or (table.has_missing and cells <= _MOST_CELLS)
    elif formed and cells > _MOST_CELLS:
        message = (
            f"A block of moments has {cells:.2g} cells, more than can be formed. Use "
            "method='tensor-free' with an update other than 'wnmf', which forms none, or columns "
            "of fewer categories."
        )
        raise InvalidInputError(message)
    if not formed:
        return MomentTensor(table, sets, alpha0)
    return DenseTensor(block_moments(table, sets, alpha0))


def block_moments(table: Table, sets: Sequence[Positions], alpha0: float) -> Array:
    """Return the moments of two or three sets of variables, over the samples that have them."""
    constants = Constants(alpha0)
    rows = [Indicators(table, own) for own in sets]
    means = [averages([own]) for own in rows]
    pairs = {
        (x, y): averages([rows[x], rows[y]], [means[x], means[y]])
        for x, y in combinations(range(len(sets)), 2)
    }
    if len(sets) == 2:
        first: Matrix = pairs[0, 1] - constants.pair * np.outer(*means)
        return first
    triple = averages(rows, means)
    triple -= constants.mixed * (
        means[0][:, None, None] * pairs[1, 2]
        + means[1][None, :, None] * pairs[0, 2][:, None, :]
        + pairs[0, 1][:, :, None] * means[2]
    )
    triple += constants.means * kruskal_to_dense(None, [own[:, None] for own in means])
    return triple


def averages(rows: Sequence[Indicators], means: Sequence[Matrix] = ()) -> Matrix:
    """Return the mean products of rows of one to three sets, over samples that have them all.

    Variables that no sample has together get the products of their means.
    """
    table = rows[0].table
    size = int(np.prod([own.n_entries for own in rows]))
    shape = tuple(own.n_rows for own in rows)
    blocks = cut(table.n_samples, max(1, _ENTRIES_AT_A_TIME // max(size, shape[-1])))
    total: Matrix = np.zeros((int(np.prod(shape[:-1])), shape[-1]))
    counts: Matrix = np.zeros([len(own.chosen) for own in rows])
    letters = ",".join(f"i{letter}" for letter in "abc"[: len(rows)])
    for block in blocks:
        parts = [own.part(block) for own in rows]
        left = _row_products(parts[:-1])
        total += left.T @ parts[-1].toarray() if parts[1:] else parts[0].sum(axis=0)[None, :]
        if table.has_missing:
            seen = [own.observed(block) for own in rows]
            counts += np.einsum(f"{letters}->{'abc'[: len(rows)]}", *seen, optimize=True)
    result: Matrix = total.reshape(shape)
    if not table.has_missing:
        return result / table.n_samples
    places = np.ix_(*(own.owner for own in rows))
    number = counts[places]
    found = result / np.maximum(number, 1.0)
    if means and (number == 0).any():
        expected = kruskal_to_dense(None, [own[:, None] for own in means])
        found = np.where(number > 0, found, expected)
    return found


def _row_products(parts: Sequence[csr_array]) -> csr_array:
    """Return the row-wise Khatri-Rao product of one or two matrices with equally full rows."""
    if len(parts) < 2:
        return parts[0] if parts else csr_array((1, 1))
    n_samples = parts[0].shape[0]
    indices = [own.indices.reshape(n_samples, -1).astype(np.int64) for own in parts]
    data = [own.data.reshape(n_samples, -1) for own in parts]
    places = (indices[0][:, :, None] * parts[1].shape[1] + indices[1][:, None, :]).ravel()
    values = (data[0][:, :, None] * data[1][:, None, :]).ravel()
    ends = np.linspace(0, values.size, n_samples + 1).astype(np.int64)
    shape = (n_samples, parts[0].shape[1] * parts[1].shape[1])
    return csr_array((values, places, ends), shape=shape)


def _observed_shares(table: Table, chosen: Positions) -> Matrix:
    """Return the part of the samples that each variable was observed in."""
    if not table.has_missing:
        return np.ones(len(chosen))
    rows = Indicators(table, chosen)
    blocks = cut(table.n_samples, max(1, _ENTRIES_AT_A_TIME // len(chosen)))
    counts = sum(rows.observed(block).sum(axis=0) for block in blocks)
    shares: Matrix = np.maximum(counts, 1.0) / table.n_samples
    return shares


def check_sets(sets: Sequence[Positions]) -> None:
    """Refuse sets of variables that are empty or share a variable."""
    for own in sets:
        if not len(own):
            message = "A set of variables is empty. Give each of the sets at least one variable."
            raise InvalidInputError(message)
    everything = np.concatenate(list(sets))
    if len(np.unique(everything)) < len(everything):
        message = (
            "The sets of variables share a variable. Moments have a product form only for "
            "different variables: give disjoint sets."
        )
        raise InvalidInputError(message)
