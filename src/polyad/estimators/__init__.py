"""The scikit-learn skeleton that every estimator stands on."""
