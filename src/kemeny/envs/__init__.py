"""Environments behind one small vector interface: EnvPool, and any Gymnasium environment.

Nothing is imported here, so that `kemeny.envs.settings` can be read without loading Gymnasium.
"""
