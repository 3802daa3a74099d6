"""`fm gate`: what a policy makes of a stored run, and how that is told to people and to CI."""
