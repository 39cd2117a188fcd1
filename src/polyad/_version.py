"""The version of polyad, read by the build."""

__version__ = "0.1.0.dev0"
