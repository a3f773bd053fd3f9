"""How the reference engine's checkpoints are made: the text, the training, and what they are worth."""
