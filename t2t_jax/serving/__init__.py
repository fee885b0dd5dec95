"""A server of translations over HTTP: sentences of all requests share one running search.

`routes` lists the routes of the API, `fields` reads requests, and `answers` answers them. `app`
speaks HTTP. The package `markup` splits texts into sentences and puts their translations together,
`service` translates the sentences with an `engine`, and `searches` is the engine of a trained
model.
"""
