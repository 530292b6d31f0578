"""Looking at a trained delta: what each kind of module shows about itself on labelled rows."""
