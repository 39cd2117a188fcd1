"""Plots and the HTML report. Needs matplotlib and jinja2: ``pip install 'polyad[report]'``."""

from polyad.report.html import write_report
from polyad.report.plots import plot_components, plot_transforms

__all__ = ["plot_components", "plot_transforms", "write_report"]
