"""Corpora in many files ("shards"): read, tokenised once into pieces, and trained on by windows."""
