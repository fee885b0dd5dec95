"""The environment of a program: its files, its streams, its signals and its host's memory."""
