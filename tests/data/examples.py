"""What tests of labelled data share."""

import scipy.sparse as sp

from polyad.data.labels import LabelledTensor

MODES = ["patient", "diagnosis", "drug"]


def to_sparse(tensor: LabelledTensor) -> LabelledTensor:
    data = sp.coo_array(tensor.data)
    return LabelledTensor(data, modes=tensor.modes, labels=tensor.labels)
