"""`closeranks bench`: collectives beside their peers, alternating in one run on the same processes.

worker.py is what each process runs; __main__.py starts them and prints the table.
"""
