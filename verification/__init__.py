"""The proof that ships: scenarios of a job on a real Redis, broken off at every command they send, and compared."""
