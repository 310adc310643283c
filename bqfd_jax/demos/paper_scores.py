"""What the paper's player, a person, scored in the demonstrations that its agents learnt from."""

# Table 1 of the paper, one game each.
PAPER_PLAYER = {
    "Breakout": 110,
    "ChopperCommand": 33_800,
    "Freeway": 27,
    "MsPacman": 30_000,
    "Seaquest": 34_000,
    "VideoPinball": 82_000,
}
