"""Kill a command at random moments, run it again until it is done, compare with an unbroken run.

python -m tests.killed COMMAND --kills 50 --seed 0
"""
