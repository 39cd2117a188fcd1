"""Costs from what is known of labels: taxonomies, codes, vectors and graphs; and sums of costs.

Costs are pandas frames with the labels in rows and columns: wherever a cost is taken, a frame is
matched to the data by label and may have more labels than these.

In a tree, and codes whose beginnings are their groups are one, the cost of two labels is that of
Dice between the sets of their groups, where a label is a group of its own: one minus twice the
number of groups that they share, divided by the number that the two have (Wu and Palmer's measure,
1994, with the root at depth 0). It is 0 for a label and itself, 1 for labels that share nothing but
the root, and smaller the deeper two labels part. It depends on no other labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from polyad.core.threads import as_slices, cut
from polyad.data.label_values import as_labels, find_labels, shown
from polyad.data.mode_matrices import WeightedSum, as_frame
from polyad.exceptions import InvalidInputError, InvalidTypeError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import ArrayLike, NDArray

# Labels of a table that are all meant where none are asked for: a cost of 5 GB.
_MOST_LABELS = 25_000
# Numbers of a block of rows that are held beside the cost: 32 MiB.
_BLOCK_SIZE = 1 << 22


def taxonomy_cost(parents: Any, labels: ArrayLike | None = None) -> pd.DataFrame:
    """Return how far labels of a tree are apart, from a table of their parents.

    Parameters
    ----------
    parents : dict, pandas Series or table of two columns
        From children to parents: keys or index and values, or a column of each in that order. The
        root is what has no parent, a missing one, or itself as one.
    labels : array-like, optional
        The labels whose costs are returned, such as ``tensor.labels[1]``; any of the tree, not only
        leaves. None for all labels of the table.

    Returns
    -------
    DataFrame of shape (n_labels, n_labels)
        From 0 to 1: one minus twice the number of groups that two labels share, divided by the
        number that they have. A label is a group of its own; the root, which all share, is none.

    Examples
    --------
    >>> from polyad.transport import taxonomy_cost
    >>> parents = {"angina": "heart", "infarct": "heart", "asthma": "lung"}
    >>> parents |= {"heart": "disease", "lung": "disease"}
    >>> taxonomy_cost(parents, ["angina", "infarct", "asthma"])
             angina  infarct  asthma
    angina      0.0      0.5     1.0
    infarct     0.5      0.0     1.0
    asthma      1.0      1.0     0.0
    """
    nodes, above = _read_parents(parents)
    nowhere = len(nodes)
    found, names = _wanted(labels, nodes, "taxonomy")
    # From each label up to its root, step by step.
    chain = [found]
    while np.any(above[chain[-1]] != nowhere):
        chain.append(above[chain[-1]])
    steps = np.array(chain)
    height = np.count_nonzero(steps != nowhere, axis=0)
    roots = np.unique(steps[height - 1, np.arange(len(found))])
    if len(roots) > 1:
        message = (
            f"The taxonomy has {len(roots)} roots above its labels, "
            f"{shown(nodes[roots].to_numpy())}: nothing says how far their trees are apart. Give "
            "them one parent, with a row of the table for each, such as "
            f"{nodes[roots[0]]!r} -> 'all'."
        )
        raise InvalidInputError(message)
    step = height[:, None] - 2 - np.arange(max(int(height.max()) - 1, 0))
    levels = np.where(step >= 0, steps[np.maximum(step, 0), np.arange(len(found))[:, None]], -1)
    return _framed(_tree_cost(levels), names)


def prefix_cost(
    labels: ArrayLike, lengths: Iterable[int] | None = None, *, separator: str | None = None
) -> pd.DataFrame:
    """Return how far codes are apart whose beginnings are their groups, as those of ICD and ATC.

    By name, ``costs={"diagnosis": "prefix"}`` is this cost with its defaults.

    Parameters
    ----------
    labels : array-like of text
        The codes. Only letters and digits count: ``J45.1`` is ``J451``.
    lengths : iterable of int, optional
        How many characters make a group, such as ``(1, 3, 4, 5, 7)`` for ATC and ``(1, 3)`` for
        letter and category of ICD-10. None for every number. A whole code is always a group.
    separator : str, optional
        What stands between the groups of labels that name them all, such as ``";"`` in
        ``"Bacteria;Firmicutes;Bacilli"``; lengths are then numbers of groups.

    Returns
    -------
    DataFrame of shape (n_labels, n_labels)
        From 0 to 1, as for :func:`taxonomy_cost`: one minus twice the length that two codes have in
        common, divided by the sum of their lengths, where lengths are numbers of groups.

    Examples
    --------
    >>> from polyad.transport import prefix_cost
    >>> prefix_cost(["J45", "J44", "I20"]).round(2)
          J45   J44  I20
    J45  0.00  0.33  1.0
    J44  0.33  0.00  1.0
    I20  1.00  1.00  0.0
    """
    names = as_labels(labels, name="labels")
    if names.dtype.kind != "U":
        message = (
            f"Labels of type {names.dtype} have no prefixes. Give codes as text, with the zeros "
            "that they begin with."
        )
        raise InvalidTypeError(message)
    wanted = None if lengths is None else _read_lengths(lengths)
    if separator is not None and not (isinstance(separator, str) and separator):
        message = f"separator={separator!r} must be text, such as ';', or None."
        raise InvalidInputError(message)
    if separator is None:
        codes = [tuple(filter(str.isalnum, label)) for label in names.tolist()]
    else:
        codes = [
            tuple(part for part in map(str.strip, label.split(separator)) if part)
            for label in names.tolist()
        ]
    empty = [number for number, code in enumerate(codes) if not code]
    if empty:
        message = (
            f"The label {shown(names[empty[:1]])} has no letter and no digit: it is no code. Name "
            "what it stands for, or leave it out of the data."
        )
        raise InvalidInputError(message)
    # A group is known by the one around it and what it adds: whole beginnings would take the square
    # of the length of a code.
    groups: dict[tuple[int, tuple[str, ...]], int] = {}
    paths = []
    for code in codes:
        path, begin = [-1], 0
        for end in (*(n for n in wanted or range(1, len(code)) if n < len(code)), len(code)):
            path.append(groups.setdefault((path[-1], code[begin:end]), len(groups)))
            begin = end
        paths.append(path[1:])
    levels = np.full((len(paths), max(map(len, paths))), -1)
    for row, path in zip(levels, paths, strict=True):
        row[: len(path)] = path
    return _framed(_tree_cost(levels), names)


def embedding_cost(
    vectors: Any,
    labels: ArrayLike | None = None,
    *,
    metric: Literal["cosine", "euclidean"] = "cosine",
) -> pd.DataFrame:
    """Return how far labels are apart that have vectors, as those of a language model.

    Parameters
    ----------
    vectors : table or dict
        A row of finite numbers for each label: a pandas frame with the labels as its index, a
        polars frame with a column of text, a labelled xarray.DataArray, or a dict from label to
        vector.
    labels : array-like, optional
        The labels whose costs are returned, such as ``tensor.labels[1]``. None for all rows.
    metric : {'cosine', 'euclidean'}, default='cosine'
        One minus the cosine, and 1 where that is above, for vectors that point away from each
        other; a vector of zeros says nothing and has the cost 1 to all others. Or the distance,
        divided by the largest between the labels.

    Returns
    -------
    DataFrame of shape (n_labels, n_labels)
        From 0 to 1.

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad.transport import embedding_cost
    >>> vectors = pd.DataFrame([[1, 0], [1, 1], [-1, 0]], index=["flu", "cold", "gout"])
    >>> embedding_cost(vectors).round(2)
           flu  cold  gout
    flu   0.00  0.29   1.0
    cold  0.29  0.00   1.0
    gout  1.00  1.00   0.0
    """
    import pandas as pd

    if metric not in ("cosine", "euclidean"):
        message = f"metric={metric!r} is not one of 'cosine', 'euclidean'."
        raise InvalidInputError(message)
    frame = as_frame(vectors)
    if isinstance(vectors, Mapping):
        sizes = {np.shape(vector) for vector in vectors.values()}
        if len(sizes) != 1 or len(next(iter(sizes))) != 1:
            message = f"The embedding has vectors of the shapes {sorted(sizes)}; give one length."
            raise InvalidInputError(message)
        frame = pd.DataFrame.from_dict(dict(vectors), orient="index")
    if frame is None:
        message = (
            f"The embedding is a {type(vectors).__name__}; give a table with the labels of its "
            "rows, such as pd.DataFrame(vectors, index=labels), or a dict from label to vector."
        )
        raise InvalidTypeError(message)
    if not frame.index.is_unique:
        repeated = frame.index[frame.index.duplicated()].to_numpy()[:1]
        message = f"The embedding has two vectors for {shown(repeated)}. Keep one, or their mean."
        raise InvalidInputError(message)
    found, names = _wanted(labels, frame.index, "embedding")
    given = frame.to_numpy()[found]
    try:
        # A complex number that is cast loses a part with no more than a warning.
        rows = np.array(given.tolist() if given.dtype.kind == "c" else given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = f"The embedding has entries that are no numbers: {error}."
        raise InvalidTypeError(message) from error
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        message = (
            f"The vectors of {len(bad)} labels are not finite, first that of "
            f"{shown(names[bad[:1]])}. Fill them, by zeros if nothing is known of a label, or "
            "leave these labels out."
        )
        raise InvalidInputError(message)
    return _framed(_vector_cost(rows, is_cosine=metric == "cosine"), names)


def graph_cost(graph: Any, labels: ArrayLike | None = None, *, scaled: bool = False) -> Any:
    """Return the length of the shortest way between any two nodes of a graph.

    Parameters
    ----------
    graph : array-like, sparse matrix or table
        The lengths of edges, in any direction: a square matrix or a table with the same labels in
        its rows and columns, zero where there is no edge; or a table of edges with two columns of
        labels and, if lengths are not all one, a third column. Of several edges between two nodes
        the shortest counts.
    labels : array-like, optional
        The labels whose costs are returned, such as ``tensor.labels[1]``; ways may lead over
        others. Those of the nodes of a matrix, in order. None for all labels of a table.
    scaled : bool, default=False
        Whether costs are divided by the largest, so that they are from 0 to 1 as other costs are.

    Returns
    -------
    DataFrame or ndarray of shape (n_labels, n_labels)
        An array for a matrix without labels.

    Examples
    --------
    >>> import pandas as pd
    >>> from polyad.transport import graph_cost
    >>> graph_cost([[0, 1, 0], [0, 0, 2], [0, 0, 0]])
    array([[0., 1., 3.],
           [1., 0., 2.],
           [3., 2., 0.]])
    >>> edges = pd.DataFrame({"from": ["Rome", "Pisa"], "to": ["Pisa", "Genoa"], "km": [350, 160]})
    >>> graph_cost(edges, ["Rome", "Genoa"])
            Rome  Genoa
    Rome     0.0  510.0
    Genoa  510.0    0.0
    """
    from scipy.sparse.csgraph import dijkstra

    lengths, nodes = _read_graph(graph)
    if nodes is not None:
        found, names = _wanted(labels, nodes, "graph")
    else:
        found = np.arange(lengths.shape[0])
        names = None if labels is None else as_labels(labels, name="labels")
        if names is not None and len(names) != len(found):
            message = f"The graph has {len(found)} nodes, and there are {len(names)} labels."
            raise InvalidInputError(message)
    cost = np.empty((len(found), len(found)))
    for rows in as_slices(cut(len(found), max(1, _BLOCK_SIZE // lengths.shape[0]))):
        cost[rows] = dijkstra(lengths, directed=False, indices=found[rows])[:, found]
        if np.isinf(cost[rows]).any():
            first, second = np.argwhere(np.isinf(cost[rows]))[0].tolist()
            ends = (rows.start + first, second)
            texts = [f"node {k}" if names is None else shown(names[[k]]) for k in ends]
            message = (
                f"There is no way from {texts[0]} to {texts[1]}: mass cannot be moved. Connect "
                "the parts of the graph by long edges, or take one part."
            )
            raise InvalidInputError(message)
    # Sums along a way may differ in their last digit from those of the way back.
    for rows in as_slices(cut(len(cost), max(1, _BLOCK_SIZE // len(cost)))):
        part = np.minimum(cost[rows, rows.start :], cost[rows.start :, rows].T)
        cost[rows, rows.start :], cost[rows.start :, rows] = part, part.T
    if scaled and cost.any():
        cost /= cost.max()
    return cost if names is None else _framed(cost, names)


def mixed_cost(parts: Any) -> WeightedSum:
    """Return a weighted sum of costs for a mode, each by name or as it would be given alone.

    Parameters
    ----------
    parts : list of (cost, weight), or dict from names to weights
        A cost is all that ``costs`` of :class:`polyad.WassersteinCP` takes for a mode, but
        ``"separate"``. Weights are not negative; weights that sum to one keep costs from 0 to 1
        there.

    Returns
    -------
    WeightedSum
        What to give for a mode. The costs are made, matched by label and summed when a model is
        fitted.

    Examples
    --------
    >>> from polyad import WassersteinCP
    >>> from polyad.transport import mixed_cost, prefix_cost
    >>> near = prefix_cost(["J45", "J44", "I20"])
    >>> model = WassersteinCP(costs={"code": mixed_cost([(near, 0.7), ("cosine", 0.3)])})
    >>> model = WassersteinCP(costs={"code": mixed_cost({"prefix": 0.7, "cosine": 0.3})})
    """
    pairs = list(parts.items()) if isinstance(parts, Mapping) else parts
    is_list = isinstance(pairs, list | tuple) and len(pairs) > 0
    if not is_list or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        message = (
            "A mixed cost is made of a list of pairs, each a cost and its weight, such as "
            '[("prefix", 0.7), ("cosine", 0.3)], or of a dict from names to weights.'
        )
        raise InvalidTypeError(message)
    return WeightedSum(tuple(cost for cost, _ in pairs), tuple(weight for _, weight in pairs))


def _read_parents(parents: Any) -> tuple[Any, NDArray[np.intp]]:
    """Return all labels of a table of parents, and the place of that of each.

    That of a root, and the one behind the last, is the number of labels.
    """
    import pandas as pd

    children: Any
    if isinstance(parents, Mapping):
        children, above = list(parents), list(parents.values())
    elif hasattr(parents, "columns") and len(parents.columns) == 2:
        children, above = _columns(parents)
    elif isinstance(parents, pd.Series):
        children, above = list(parents.index), list(parents)
    else:
        columns = f" of {len(parents.columns)} columns" if hasattr(parents, "columns") else ""
        message = (
            f"The taxonomy is a {type(parents).__name__}{columns}; give a dict or a pandas Series "
            "from children to parents, or a table of two columns, children and parents."
        )
        raise InvalidTypeError(message)
    table = pd.DataFrame({"child": children, "parent": above}, dtype=object)
    try:
        table = table.drop_duplicates()
    except TypeError as error:
        message = f"The taxonomy has parents that are no labels: {error}. Give one for each child."
        raise InvalidTypeError(message) from error
    if table.empty or table["child"].isna().any():
        what = "no rows" if table.empty else "a row without a child"
        message = f"The taxonomy has {what}. Give a child and its parent in each row."
        raise InvalidInputError(message)
    repeated = table["child"][table["child"].duplicated()]
    if len(repeated):
        first = repeated.iloc[0]
        both = table.loc[table["child"] == first, "parent"].to_numpy()
        message = (
            f"The taxonomy has {len(both)} parents for {first!r}: {shown(both)}. A label of a tree "
            "has one: keep one, or give all rows as edges to graph_cost."
        )
        raise InvalidInputError(message)
    has_none = table["parent"].isna()
    is_root = has_none | (table["child"] == table["parent"].where(~has_none, table["child"]))
    numbers, found = pd.factorize(pd.concat([table["child"], table["parent"][~is_root]]))
    nodes = pd.Index(found.tolist())
    size = len(nodes)
    places = np.full(size + 1, size)
    below = numbers[: len(table)][~is_root.to_numpy()]
    places[below] = numbers[len(table) :]
    # Twice as far up in each step, and at last as far as there are labels: all should be outside.
    far = places
    for _ in range(size.bit_length()):
        far = far[far]
    if np.any(far != size):
        circle = [int(np.flatnonzero(far != size)[0])]
        while circle[-1] not in circle[:-1]:
            circle.append(int(places[circle[-1]]))
        whole = [repr(nodes[place]) for place in circle[circle.index(circle[-1]) :]]
        message = (
            f"The taxonomy goes in a circle: {' -> '.join(whole[:6])}. Each label needs a way up "
            "to the root: mend or drop one of these rows."
        )
        raise InvalidInputError(message)
    return nodes, places


def _columns(table: Any) -> list[list[Any]]:
    """Return the columns of a table, also where two have the same name."""
    if hasattr(table, "iloc"):
        return [list(table.iloc[:, k]) for k in range(len(table.columns))]
    return [list(table[name]) for name in table.columns]


def _wanted(labels: ArrayLike | None, known: pd.Index, what: str) -> tuple[NDArray[Any], Any]:
    """Return where the wanted labels are, and their names."""
    if not len(known):
        message = f"The {what} has no labels. Give a table with a row at least."
        raise InvalidInputError(message)
    if labels is None:
        if len(known) > _MOST_LABELS:
            message = (
                f"The {what} has {len(known)} labels; costs between all of them would take "
                f"{8e-9 * len(known) ** 2:.3g} GB. Name those of your data, such as "
                "labels=tensor.labels[1]."
            )
            raise InvalidInputError(message)
        return np.arange(len(known)), known
    names = as_labels(labels, name="labels")
    found = find_labels(known, names)
    missing = names[found < 0]
    if len(missing):
        message = (
            f"The {what} does not have {len(missing)} of {len(names)} labels, first "
            f"{shown(missing[:1])}; it has {shown(known.to_numpy())}. Add them to it, or leave "
            "them out of the data."
        )
        raise InvalidInputError(message)
    return found, names


def _read_lengths(lengths: Iterable[int]) -> list[int]:
    found = list(lengths) if isinstance(lengths, Iterable) else [lengths]
    is_whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in found)
    if not found or not is_whole or found[0] < 1 or sorted(set(found)) != found:
        message = (
            f"lengths={lengths!r} must be whole numbers of characters, at least one and rising, "
            "such as (1, 3, 4, 5, 7)."
        )
        raise InvalidInputError(message)
    return found


def _tree_cost(levels: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return the costs of labels from their groups (n, depth), the largest first; -1 fills rows.

    In the order of a dictionary, two labels share as much as any two neighbours between them do at
    least: no more than a running minimum is needed, however deep the tree is.
    """
    n = len(levels)
    order = np.lexsort(levels.T[::-1]) if levels.shape[1] else np.arange(n)
    ordered = levels[order]
    depth = np.count_nonzero(ordered >= 0, axis=1)
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] >= 0)
    shared = np.count_nonzero(np.minimum.accumulate(same, axis=1), axis=1)
    cost, common = np.empty((n, n)), np.empty(n)
    place_of = np.argsort(order)
    for place, label in enumerate(order):
        common[place] = depth[place]
        common[place + 1 :] = np.minimum.accumulate(shared[place:])
        common[:place] = np.minimum.accumulate(shared[:place][::-1])[::-1]
        np.take(1.0 - 2.0 * common / np.maximum(depth + depth[place], 1), place_of, out=cost[label])
    np.fill_diagonal(cost, 0.0)
    return cost


def _vector_cost(rows: NDArray[np.float64], *, is_cosine: bool) -> NDArray[np.float64]:
    """Return the costs of vectors."""
    n = len(rows)
    # Of sizes near one: squares of 1e-200 would vanish.
    largest = np.abs(rows).max(axis=1 if is_cosine else None, keepdims=True, initial=0.0)
    rows = rows / np.where(largest > 0, largest, 1.0)
    if is_cosine:
        norms = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
        rows = rows / np.where(norms > 0, norms, 1.0)
    else:
        rows = rows - rows.mean(axis=0)
    squares = np.square(rows).sum(axis=1)
    cost = np.empty((n, n))
    for block in as_slices(cut(n, max(1, _BLOCK_SIZE // n))):
        products = rows[block] @ rows[block.start :].T
        if is_cosine:
            part = 1.0 - products
        else:
            sums = squares[block, None] + squares[block.start :]
            part = np.sqrt(np.maximum(sums - 2.0 * products, 0.0))
        # A product and its mirror image differ by rounding.
        size = len(part)
        part[:, :size] = (part[:, :size] + part[:, :size].T) / 2.0
        cost[block, block.start :], cost[block.start :, block] = part, part.T
    if is_cosine:
        np.clip(cost, 0.0, 1.0, out=cost)
    np.fill_diagonal(cost, 0.0)
    if not is_cosine:
        cost /= max(float(cost.max()), np.finfo(np.float64).tiny)
    return cost


def _read_graph(graph: Any) -> tuple[Any, Any]:
    """Return the lengths of edges as a sparse matrix, and the labels of its nodes if it has any."""
    from scipy.sparse import csr_array

    frame = as_frame(graph)
    if hasattr(graph, "columns") and not _is_square_table(frame):
        return _read_edges(graph)
    nodes: Any = None
    if frame is not None:
        nodes = frame.columns
        if not (nodes.is_unique and frame.index.is_unique):
            message = "The graph has a label twice in its rows or columns. Name each node once."
            raise InvalidInputError(message)
        graph = frame.loc[nodes].to_numpy()
    try:
        lengths = csr_array(graph, dtype=np.float64)
    except (TypeError, ValueError) as error:
        message = f"The graph is a {type(graph).__name__}; give a square matrix of lengths."
        raise InvalidTypeError(message) from error
    if lengths.ndim != 2 or lengths.shape[0] != lengths.shape[1] or not lengths.shape[0]:
        message = f"The graph has the shape {lengths.shape}; give a square matrix of lengths."
        raise InvalidInputError(message)
    _check_lengths(lengths.data)
    return lengths, nodes


def _is_square_table(frame: Any) -> bool:
    """Say whether a frame has numbers, and the same labels in its rows and columns."""
    if frame is None or set(frame.index) != set(frame.columns):
        return False
    return all(kind.kind in "iufb" for kind in frame.dtypes)


def _read_edges(table: Any) -> tuple[Any, Any]:
    """Read a table of edges, of which the shortest between two nodes counts."""
    import pandas as pd
    from scipy.sparse import csr_array

    columns = list(table.columns)
    if len(columns) not in (2, 3) or not len(table):
        message = (
            f"The graph is a table of {len(columns)} columns and {len(table)} rows; give edges, "
            "two columns of labels and perhaps a third of lengths, or lengths with the same labels "
            "in rows and columns."
        )
        raise InvalidInputError(message)
    given = _columns(table)
    ends = [pd.Series(column, dtype=object) for column in given[:2]]
    if any(end.isna().any() for end in ends):
        message = "The graph has an edge without a label at one end. Name it, or drop its row."
        raise InvalidInputError(message)
    values = np.ones(len(table))
    if len(columns) == 3:
        try:
            values = np.array(given[2], dtype=np.float64)
        except (TypeError, ValueError) as error:
            message = f"The lengths of edges, column {columns[2]!r}, are no numbers: {error}."
            raise InvalidTypeError(message) from error
    _check_lengths(values)
    try:
        numbers, found = pd.factorize(pd.concat(ends))
    except TypeError as error:
        message = f"The graph has edges whose ends are no labels: {error}."
        raise InvalidTypeError(message) from error
    first, second = numbers.reshape(2, -1)
    edges = pd.DataFrame({"a": np.minimum(first, second), "b": np.maximum(first, second)})
    least = edges.assign(length=values)[first != second].groupby(["a", "b"])["length"].min()
    places = (least.index.get_level_values(0), least.index.get_level_values(1))
    shape = (len(found), len(found))
    return csr_array((least.to_numpy(), places), shape=shape), pd.Index(found.tolist())


def _check_lengths(lengths: NDArray[np.float64]) -> None:
    if not np.all((lengths >= 0) & (lengths < np.inf)):
        bad = lengths[~((lengths >= 0) & (lengths < np.inf))][0]
        message = (
            f"The graph has lengths that are negative or not finite, first {bad}. Give lengths of "
            "zero or more, small for what is near; drop the edges that there are not."
        )
        raise InvalidInputError(message)


def _framed(cost: NDArray[np.float64], names: Any) -> pd.DataFrame:
    import pandas as pd

    index = pd.Index(names)
    return pd.DataFrame(cost, index=index, columns=index, copy=False)
