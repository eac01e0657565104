"""`closeranks bench`: collectives beside their peers, alternating in one run on the same processes.

__main__, command_line   what is asked
compare                  ours beside its peers: starts the sides, measures size by size
sides                    the processes of each library, and how the bench speaks with them
measure                  alternating rounds, medians, tails
openmpi, torch_worker    the peers (our own C++ process is tools/bench_worker.cc)
report                   table and picture
ddp, ddp_step, repair    two figures that are no op of their own; session: a job of its own, started by hand
"""
