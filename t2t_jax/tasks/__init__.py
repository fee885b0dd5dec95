"""What a corpus is for: translation, or parsing."""
