"""A fleet: a bundle published once as a repository of The Update Framework (TUF), which boards take up by themselves.

Source: The Update Framework's specification (https://theupdateframework.github.io/specification/latest/), python-tuf.
"""
