"""The vocabulary that training runs learn from their corpus."""
