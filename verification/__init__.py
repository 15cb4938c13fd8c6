"""The proof that ships: scenarios of a real job on a real Redis, broken off at every command they send, and compared."""
