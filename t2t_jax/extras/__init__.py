"""Optional packages (extras) that the core never imports.

Each package defines a `PLUGIN` for the plugin table. It imports the core, and another extra only if
the table lists it.
"""
