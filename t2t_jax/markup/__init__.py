"""Text with markup: what is translated of it, and how the markup is put at the translated words."""
