"""Process managers: each reacts to events, keeps its own progress, issues commands and sets deadlines."""
