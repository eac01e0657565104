// The orders that make the recipe safe, one switch each. A group runs with all of them on; the algorithm simulator
// turns one off at a time to show which interleaving it is there for (tests/algorithm_simulator/rules_test.cc).
#pragma once

namespace closeranks::algorithm {

struct Rules {
  // A block is published final before its first byte goes into a tensor (protocol rule 1). Off: after the copies.
  bool final_before_copy = true;
  // A block is published distributed after its last byte is in place. Off: before the copies.
  bool distributed_after_copy = true;
  // A taker says distributed when it has read and written its last byte. Off: before the first.
  bool distributed_after_taking = true;
  // An entry in which members take is complete when all that are present have. Off: when this member has.
  bool wait_for_takers = true;
  // What a lost member would have taken, nobody waits for. Off: as if it were present.
  bool drop_parts_of_the_lost = true;
  // A living owner keeps its seats when another member dies (protocol rule 2). Off: all seats are dealt anew.
  bool living_owners_keep_seats = true;
  // The scratch is reused only once its block is distributed. Off: install drops the block in work.
  bool finish_scratch_first = true;
  // Of several members that claim a block the first has it: a compare-and-swap. Off: the last, by a store.
  bool claim_by_swap = true;
  // The words of an entry's blocks lie with its lowest contributor for good. Off: with the lowest member that is left.
  bool words_stay = true;
  // A block is begun only when all contributors have entered. Off: when this member has.
  bool wait_for_contributors = true;
  // An entry is entered only when every present member has completed the one whose ring slots it takes. Off: when this
  // member has.
  bool wait_for_window = true;
  // Nothing happens between prepared and install (protocol rule 7). Off: freeze only takes the status.
  bool freeze_stops = true;
  // An entry's last op is decided once (protocol rule 16). Off: each view's decision overwrites the earlier ones.
  bool last_op_decided_once = true;
  // Under policy fail the first compare-and-swap decides. Off: each member goes by what it sees.
  bool decide_by_swap = true;
  // Every epoch of the group counts `connected` anew: nobody enters its first entry before all members hold the memory
  // of the newcomer too (protocol rule 6). Off: who has said it once has said it for ever.
  bool connect_per_epoch = true;
  // Signatures are compared before bytes move. Off: never.
  bool compare_signatures = true;
};

}  // namespace closeranks::algorithm
