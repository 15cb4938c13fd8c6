"""A small exhaustive model: every interleaving of two workers, a leader and a sender, on the production scripts."""
