"""Names of scikit-learn that are not promised to stay, in the one module that imports them.

Estimators also follow its protocol of private names: ``_parameter_constraints``,
``_validate_params`` and ``_n_features_out``.
"""

from sklearn.base import _fit_context as fit_context
from sklearn.utils import _safe_indexing as take_rows
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils._set_output import _get_container_adapter as container_adapter
from sklearn.utils._set_output import _get_output_config as output_config
from sklearn.utils.validation import _check_feature_names as check_feature_names
from sklearn.utils.validation import _num_samples as count_samples

__all__ = [
    "Interval",
    "StrOptions",
    "check_feature_names",
    "container_adapter",
    "count_samples",
    "fit_context",
    "output_config",
    "take_rows",
]
