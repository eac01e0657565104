"""`closeranks demo`: real training that loses two workers in mid all-reduce and goes on.

training.py is the script each worker runs; runs.py starts the jobs and strikes; report.py measures what it cost;
picture.py draws it; __main__.py is the command.
"""
