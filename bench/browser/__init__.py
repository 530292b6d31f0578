"""A site of `edgepeft web` beside Transformers.js in headless Chromium: ``python -m bench.browser``."""
