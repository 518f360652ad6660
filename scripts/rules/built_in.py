"""The rules of the package: the criteria of Stern et al. (2018), its other proposers, and block
verification."""

from rule import Rule

STERN = "Stern et al. 2018, arXiv 1811.03115, "
BLOCKS = ((10, ""), (4, ", blocks of 4"))
RULES = [
    Rule("token by token", "the baseline", "lossless", {"block_size": 1}),
    *(Rule("heads, exact" + of, STERN + "section 3", "lossless", {"block_size": size},
           needs="heads") for size, of in BLOCKS),
    Rule("heads, epsilon 2", STERN + "section 5.2", "none",
         {"block_size": 10, "accept": "distance", "epsilon": 2}, needs="heads"),
    Rule("heads, top-2", STERN + "section 5.1", "none",
         {"block_size": 10, "accept": "top-k", "top_k": 2}, needs="heads"),
    Rule("heads, minimum block 2", STERN + "section 5.3", "none",
         {"block_size": 10, "min_block": 2}, needs="heads"),
    *(Rule("heads, block verification" + of, "Sun et al. 2025, arXiv 2403.10444, algorithm 2",
           "lossless", {"block_size": size, "sampling": "speculative"}, needs="heads")
      for size, of in BLOCKS),
    Rule("draft, block verification", "Leviathan et al. 2023, arXiv 2211.17192; Sun et al. 2025",
         "lossless", {"proposer": "draft", "block_size": 4, "sampling": "speculative"},
         needs="a draft"),
    Rule("Jacobi, shared noise", "Song et al. 2021, arXiv 2002.03629, section 4", "lossless",
         {"proposer": "jacobi", "block_size": 10}),
    Rule("Lookahead", "Fu et al. 2024, arXiv 2402.02057, section 3", "lossless",
         {"proposer": "lookahead", "block_size": 2, "window": 8, "candidates": 8}),
]
