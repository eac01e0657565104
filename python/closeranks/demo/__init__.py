"""`closeranks demo`: real training that loses four workers, has each replaced and goes on.

training.py is the script each worker runs; runs.py starts the jobs and does the harm; report.py measures what it cost;
picture.py draws it; __main__.py is the command.
"""

HELD_OUT = 360  # of scikit-learn's 1,797 images; drawn with a fixed seed
BATCH = 32  # images per worker and step
