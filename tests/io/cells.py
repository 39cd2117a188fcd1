"""Counts of a few genes in a few cells, as the tests of AnnData share them."""

from contextlib import contextmanager

import anndata as ad
import numpy as np
import pandas as pd

GENES = ["TP53", "MYC", "GAPDH", "ACTB", "CD3E", "CD4", "CD19", "CD8A"]
CELLS = [f"c{k:02d}" for k in range(30)]


def _counts():
    """Two kinds of cells, with counts that no gene and no cell is without."""
    generator = np.random.default_rng(0)
    profiles = generator.gamma(2.0, 3.0, size=(2, len(GENES)))
    shares = np.where(np.arange(len(CELLS)) % 2, 0.9, 0.1)[:, None]
    rates = shares * profiles[0] + (1 - shares) * profiles[1]
    counts = generator.poisson(rates).astype(np.float32)
    counts[:, 0] += 1
    counts[0] += 1
    return counts


COUNTS = _counts()


def make(convert, dtype="float32"):
    """Return the counts as an AnnData with the given container."""
    obs, var = pd.DataFrame(index=CELLS), pd.DataFrame(index=GENES)
    return ad.AnnData(convert(COUNTS.astype(dtype)), obs=obs, var=var)


def save(adata, path):
    """Write a file; with pandas 3 the names are of a type that needs the user's leave."""
    with ad.settings.override(allow_write_nullable_strings=True):
        adata.write_h5ad(path)


@contextmanager
def on_disk(adata, path):
    """Give an AnnData whose matrix stays in its file."""
    save(adata, path)
    backed = ad.read_h5ad(path, backed="r")
    try:
        yield backed
    finally:
        backed.file.close()
