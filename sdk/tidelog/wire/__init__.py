"""The protocol client: requests in negotiated versions over asyncio connections."""
