"""Experiments of the paper on mixed membership models (PTPQP), and beyond it."""
