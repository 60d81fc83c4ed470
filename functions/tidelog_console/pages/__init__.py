"""The pages of the console: handlers, one module a page."""
