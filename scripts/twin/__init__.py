"""The parts of twin_run.py."""
