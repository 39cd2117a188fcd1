"""The experiments of the SWIFT paper: BBC News, patients, scaling."""
