"""Plots and the HTML report. Needs matplotlib: ``pip install 'polyad[report]'``."""

from polyad.report.html import write_report
from polyad.report.plots import plot_components

__all__ = ["plot_components", "write_report"]
