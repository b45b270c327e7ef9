"""Techniques that change how a pass is run, and not what it computes: rewrites of its layout, one file each."""
