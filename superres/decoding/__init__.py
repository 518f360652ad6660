"""The decoder: proposals, verification, acceptance. It uses the network through
`superres.interfaces` only."""
