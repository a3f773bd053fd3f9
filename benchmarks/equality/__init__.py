"""What a change of form must not change: verdicts on stored runs, plans, requests and the reference engine's answers."""
