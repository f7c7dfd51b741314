"""The operator's verbs: create, pause, update, reset, remove; in calls and in SQL."""
