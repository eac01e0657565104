// What a recorder's files say once they are decoded: the model that the writer's format is read into, that other
// backends' dumps are read into, and that verdicts are made from. Pure data; times are nanoseconds of the job's clock
// (the coordinator's CLOCK_MONOTONIC; a file's own times plus its clock offset).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "closeranks/ids.h"
#include "closeranks/op.h"

namespace closeranks::recorder {

// A collective or point-to-point call as its caller made it. Members whose calls under one number differ are compared
// by these.
struct OpCall {
  std::string kind;          // "all_reduce"; other backends' kinds by the same names where they have one
  std::string dtype;         // "float32"; empty: unknown
  std::string reduce;        // "sum"; empty: none
  std::string shape;         // "[64, 3]"; of lists "[2] x 4"; empty: unknown
  std::optional<Rank> root;  // of a rooted kind; the peer of a send or recv
  std::uint64_t bytes = 0;   // of the larger of input and output
  friend bool operator==(const OpCall&, const OpCall&) = default;
};

// One op of one worker, as far as its file knows it. A time that is missing did not happen, or its record was
// overwritten.
struct OpTrace {
  std::uint32_t group = 0;     // index into WorkerTrace::groups
  std::uint64_t sequence = 0;  // of the op's first entry in its group
  OpCall call;
  std::string algorithm;  // "inline", "share", "take", "messages", "alone"; empty: unknown
  std::optional<std::int64_t> issued_ns;
  std::optional<std::int64_t> entered_ns;
  std::optional<std::int64_t> first_byte_ns;
  std::optional<std::int64_t> last_byte_ns;
  std::optional<std::int64_t> finished_ns;  // or failed, if `failure` is not empty
  std::int64_t waited_ns = 0;               // for the last arrival
  std::optional<Slot> last_arrival;         // who that was
  std::vector<Slot> contributors;           // empty: all members
  bool repaired = false;
  std::string failure;  // what the caller was told
  std::string stack;    // where it was called from, innermost first: `File "train.py", line 3 in step`; empty: unknown
};

struct GroupTrace {
  std::string name;
  std::uint64_t key = 0;
  std::vector<Slot> members;  // in rank order
  std::string policy;         // "fail", "repair", "exact"; empty: unknown
  std::optional<std::int64_t> made_ns;
  std::optional<std::int64_t> ended_ns;
  std::uint64_t entered = 0;  // entries entered and completed, by the file's own words, which outlive a kill
  std::uint64_t completed = 0;
  std::optional<OpTrace> current;  // what the worker was in when the file was read, or when it died
};

enum class EventKind : std::uint8_t {
  started,         // detail: command line
  ended,           // in order; detail: "exit status 0", or how its interpreter ends
  exception,       // detail: the last line; stack: all of it
  step,            // number: the step that began (Session or mark)
  group_made,      // group
  group_ended,     // group
  view,            // detail: reason; slots: the present ones
  boundary,        // number: step
  state_transfer,  // number: bytes; detail
  mark,            // the user's own; detail
  loading,         // number: 1 the data loader is asked for a batch, 0 it has given one
  waiting,         // an op waits for slots since `since_ns`; group, number: sequence; detail: the sentence
  peer_state,      // what an observer saw of slots[0]: detail "stopped (T)", "in the kernel: fuse_...", "dead"
  peer_lost,       // slots[0] is gone; detail: how
  worker_exited,   // an agent's: slots[0], worker; number: wait status; detail: the sentence
  out_of_memory,   // an agent's or observer's: the kernel killed for memory; slots[0], if known; number: its count
  stack,           // slots[0]'s Python stack in `stack`
  excluded,        // an agent's: slots[0]; detail: reason
  mismatch,        // detail: the sentence; group, number: sequence
  not_finite,      // first NaN or infinity; group, number: sequence; slots[0]: whose input; detail: "NaN at element 17"
  timeout,         // an op timed out; group, number: sequence; slots: who was missing; detail
};

struct Event {
  EventKind kind = EventKind::mark;
  std::int64_t at_ns = 0;
  std::uint32_t thread = 0;            // thread id; 0: unknown
  std::optional<std::uint32_t> group;  // index into the trace's groups
  std::uint64_t number = 0;
  std::int64_t since_ns = 0;
  std::vector<Slot> slots;
  std::optional<WorkerId> worker;
  std::string detail;
  std::string stack;
};

enum class Role : std::uint8_t { worker, agent };

// One file. An agent's file has events only.
struct WorkerTrace {
  std::string file;    // where it was read from
  std::string writer;  // "closeranks 0.1.0", "torch 2.15.0 gloo"
  Role role = Role::worker;
  std::string job;
  std::optional<Slot> slot;
  std::optional<WorkerId> worker;
  std::string host;
  std::uint32_t pid = 0;
  std::string boot_id;
  std::uint32_t slots_in_job = 0;    // 0: unknown
  std::int64_t clock_offset_ns = 0;  // added to all its times already
  std::int64_t unix_offset_ns = 0;   // job clock + this = unix time
  std::int64_t last_written_ns = 0;  // of the newest record or word
  bool ended_in_order = false;
  std::optional<bool> running;       // whether its process ran when the file was read; empty: not known from here
  std::uint64_t overwritten = 0;     // records that the ring has lost to newer ones
  std::uint64_t damaged = 0;         // records that made no sense: torn, or the file was cut
  std::vector<std::string> remarks;  // what the reader had to say of the file: "cut short at ..."
  std::vector<GroupTrace> groups;
  std::vector<OpTrace> ops;   // by finished, else issued time
  std::vector<Event> events;  // by time
};

// All that was found in a directory.
struct JobTrace {
  std::vector<WorkerTrace> workers;  // every worker that ever filled a slot, and the agents
  std::vector<std::string> remarks;  // files that could not be read, jobs that were left out
  std::int64_t read_ns = 0;          // when they were read, if the job's clock is this machine's; 0: not known
};

}  // namespace closeranks::recorder
