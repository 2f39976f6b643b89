"""The read model of publications: which artifact each output of each run is."""
