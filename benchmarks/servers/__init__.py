"""The parts of `serving.py` and `soak.py`: servers, their clients and loads, and figures."""
