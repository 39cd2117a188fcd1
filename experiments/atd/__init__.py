"""Self-supervised CP features of signals: AugmentedCP, what is published, and what is plain."""
