"""A server of a capture: started, watched, and ended so that nothing of it is left behind."""
