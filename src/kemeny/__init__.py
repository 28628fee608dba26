"""Kemeny: deep reinforcement learning for tasks that never end."""
