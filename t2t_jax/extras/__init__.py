"""The extras: a package for each subject beside the core, which never imports them.

Each has a `PLUGIN`, its row in the table of plugins. It imports the core, and no other extra unless
the row names it.
"""
