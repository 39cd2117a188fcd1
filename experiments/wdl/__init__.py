"""The figures of the paper on Wasserstein dictionaries, and MNIST with held-out digits."""
