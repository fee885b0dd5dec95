"""The cleaning of parallel text: rules that drop pairs, and the stream of a corpus through them."""
