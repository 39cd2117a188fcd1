"""How good and how steady the optima are that starts of different kinds lead to."""
