"""A run: its settings, its directory, its loop; stopped and resumed."""
