"""The paper's equations as pure functions: arrays in, arrays out."""
