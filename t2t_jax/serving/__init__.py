"""A translation server over HTTP: the sentences of all requests share one running search.

`engine` splits texts into sentences and translates them, `app` answers requests, and `server` owns
the socket and stops in order.
"""
