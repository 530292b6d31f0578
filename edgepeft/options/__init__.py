"""What can be asked of a verb: one model of options each, light enough for every start of the command line."""
