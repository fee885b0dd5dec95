"""A server of translations over HTTP: sentences of all requests share one running search.

`engine` is what translates; `searches` is the one that the product has. `documents` parts texts
into sentences and puts them together again, `service` translates them, and `app` speaks HTTP.
"""
