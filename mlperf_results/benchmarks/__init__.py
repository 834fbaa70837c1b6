"""How often the answers are right."""
