"""nearmetal: what does virtualization cost an HPC code on this machine, and why?

``nearmetal.load(path)`` returns the measurements of a store as a pandas data frame, one row a
measurement; see :func:`nearmetal.store.load` for the columns.
"""

__version__ = "0.1.0"


def load(path):
    """Return the measurements of the store at ``path`` (a file or a results folder)."""
    from nearmetal.store import load as load_store

    return load_store(path)


__all__ = ["__version__", "load"]
