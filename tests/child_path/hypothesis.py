"""Keeps hypothesis out of the processes that tests start.

kio imports it where it is installed, which costs a node 0.3 s of its start; users do
not have it.
"""

raise ImportError("the processes under test run without hypothesis, as they do for users")
