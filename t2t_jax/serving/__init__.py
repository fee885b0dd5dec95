"""A server of translations over HTTP: sentences of all requests share one running search.

`routes` has the API, one row a route, with `fields` that requests have and `answers` that they get.
`app` speaks HTTP. `documents` parts texts into sentences and puts them together again, `service`
translates them with an `engine`, and `searches` is the engine that the product has.
"""
