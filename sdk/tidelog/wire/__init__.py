"""How the SDK talks: requests in the negotiated version over asyncio connections."""
