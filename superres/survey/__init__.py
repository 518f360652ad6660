"""Survey: people say which of two pictures was more likely a photograph, or whether a single one is
torn or good."""
