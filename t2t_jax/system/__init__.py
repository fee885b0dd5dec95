"""What surrounds a program: its files, its streams, its signals and the memory of its host."""
