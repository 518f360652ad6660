"""The network: encoder, decoder with blocked local attention, prediction heads, and its cached
decoding step."""
