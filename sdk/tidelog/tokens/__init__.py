"""Where clients get the tokens that they log in with (OAUTHBEARER)."""
