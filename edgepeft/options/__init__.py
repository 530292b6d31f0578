"""The verbs' options: one pydantic model each, cheap enough to import at every start of the command line."""
