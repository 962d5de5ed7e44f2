"""The HTTP API: one table of routes, bodies from `model.views`, errors as problem JSON.

`app.create_app` builds the application around a running controller; `serve.run_server` is the
whole server process. The API reads the controller's state and sends it commands; it decides
nothing by itself but who may see what (`auth`, `redact`).
"""
