"""Runs side by side: pictures, sweeps, and the figures and table of the paper."""
