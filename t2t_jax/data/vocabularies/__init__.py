"""The vocabulary of a run that was trained here, and how it is learned."""
