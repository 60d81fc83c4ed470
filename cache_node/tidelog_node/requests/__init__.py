"""A request, the client that sent it, and the route that its API takes to a handler."""
