// Switches of the protocol's rules. Production keeps them all on; each exists so that a test can show that the
// simulator's oracle finds a violation without it (docs/protocol.md has the interleavings).
#pragma once

namespace closeranks::membership {

struct Rules {
  // Rule 7. A worker that promised view n refuses everything below n.
  bool refuse_lower_numbers = true;
  // Rule 8. A view is proposed only when everybody it excludes is fenced.
  bool fence_before_propose = true;
  // Rules 11 and 16. A departure decided once is never decided again, and handed on in every later view.
  bool decide_once = true;
  // Rule 16. The input of an excluded worker counts only in entries that some survivor had entered.
  bool bound_by_survivors = true;
  // Rule 21. Each start of a coordinator raises the term, so that its numbers are above all that went before.
  bool raise_term = true;
  // Rule 21. A restarted coordinator proposes a fresh number when anything may be unresolved.
  bool fresh_number_after_restart = true;
  // Rule 21. After a stall of the coordinator its deadlines start anew.
  bool renew_deadlines_after_stall = true;
  // Rule 21. Below min_present the coordinator gives up.
  bool respect_min_present = true;
  // Rule 22. A report of a peer that waits for nobody is a hint and fences nobody.
  bool reports_are_hints = true;
  // Rule 18. A newcomer's numbers say nothing: a group goes on where the survivors are.
  bool newcomer_brings_no_numbers = true;
  // Rule 18. A join is decided only when every group is idle and all survivors are equally far in it.
  bool join_needs_idle_groups = true;
  // Rule 20. A hold ends with its connection, and with its coordinator.
  bool hold_ends_with_connection = true;
  // Rule 20. A death cancels the join in progress first; so does a lost connection.
  bool trouble_cancels_join = true;
  // Rule 20. Members change only when everybody is prepared at the boundary and the state has arrived.
  bool join_waits_for_all = true;
  // A view is decided only with the answer of every registered survivor (late ones become suspects).
  bool wait_for_all_survivors = true;
};

}  // namespace closeranks::membership
