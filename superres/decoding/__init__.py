"""The decoder: proposals, verification, acceptance. It knows the network only as `superres.interfaces.ScoringModel`."""
