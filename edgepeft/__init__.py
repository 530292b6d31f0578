"""edgepeft: many parameter-efficient tasks on one frozen Transformer, on one small board."""

__version__ = "0.1.0"
__all__ = ["__version__"]
