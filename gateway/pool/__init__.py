"""The pool: every endpoint's state, how it is learned (health, scrapes) and how it is shown to decisions (views)."""
