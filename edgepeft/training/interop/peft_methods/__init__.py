"""PEFT's methods: one file each, found by discovery; its config, how its tensors become ours, and the way back."""
