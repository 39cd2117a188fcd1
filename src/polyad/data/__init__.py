"""What comes in: types of other packages, validation, labels, long tables, batches of samples."""

from polyad.data.labels import LabelledTensor

__all__ = ["LabelledTensor"]
