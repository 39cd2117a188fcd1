"""The ground: used by all, using nothing of ours but the exceptions."""
