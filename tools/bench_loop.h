// What a process of `closeranks bench` does: it takes commands from the bench (python/closeranks/bench) through a unix
// socket, sleeps in a blocking read between them, and measures one library. Shared by ours and its C++ peers.
//
// A command is a line of words, and so is the answer, which begins with "ok", "no" (it cannot: a reason follows) or
// "error" (the process ends: a reason follows). Every process of a side gets the same commands in the same order.
//   variants OP                          ok NAME...      ways to run OP that the library offers
//   prepare ID OP BYTES MEMORY VARIANT   ok MEMORY       buffers, one checked run; the memory that it really is
//   round ID RUNS                        ok S            seconds per op of RUNS runs, after a barrier
//   singles ID RUNS                      ok S S...       the same, each run on its own clock
//   storm ID RUNS                        ok NS...        runs until a member is missing; when each ended, Unix time
//   explain ID                           ok TEXT         which way was taken and why
//   release                              ok              all that was prepared goes
//   end                                  ok              the process ends
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bench_shape.h"

namespace closeranks::bench {

// One op on fixed buffers, ready to run.
class Work {
 public:
  virtual ~Work() = default;
  // A failure of ours ends the process with its reason (fail()).
  virtual void run() = 0;
  // Why the last run did nothing of use: a peer's variant that does not work for this size or number of processes.
  [[nodiscard]] virtual std::string trouble() const { return ""; }
  [[nodiscard]] virtual std::string explain() const { return ""; }
  // Members whose input is in the result of the last run.
  [[nodiscard]] virtual std::uint32_t contributors() const { return 0; }
};

// A library that is measured, on one thread.
class Library {
 public:
  virtual ~Library() = default;
  // Memory for the buffers of ops, kept until release(). `memory` is the kind asked for ("shared", "private") and told
  // back as what it is; nullptr: no memory left.
  virtual std::byte* allocate(std::size_t bytes, std::string& memory) = 0;
  virtual void release(std::byte* memory, std::size_t bytes) = 0;
  // nullptr: the library has no such op or variant, with a reason.
  virtual std::unique_ptr<Work> prepare(const Shape& shape, std::byte* input, std::byte* output,
                                        const std::string& variant, std::string& reason) = 0;
  virtual void barrier() = 0;
  // Names separated by blanks.
  virtual std::string variants(Operation) { return "default"; }
};

// Tells the bench why, and ends the process with status 1.
[[noreturn]] void fail(const std::string& why);

// Serves the bench at the socket $CLOSERANKS_BENCH_SOCKET as `rank` of the side called $CLOSERANKS_BENCH_SIDE until it
// says end, or goes away. Returns the exit status.
int serve(Library& library, std::uint32_t rank, std::uint32_t ranks);

// Page-aligned memory with huge pages where it is large: what a library at its best is given. nullptr: none left.
std::byte* allocate_private(std::size_t bytes);
void release_private(std::byte* memory);

}  // namespace closeranks::bench
