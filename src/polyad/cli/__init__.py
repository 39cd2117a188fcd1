"""The commands of ``python -m polyad``, a module for each."""
