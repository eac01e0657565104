// What the two halves of point_to_point.h share: a transfer, its bytes, and where outcomes are gathered.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "closeranks/communicator.h"
#include "communicator/point_to_point.h"

namespace closeranks::communicator {

// The bytes of a transfer: a list of buffers as one sequence, walked once from the front.
class BufferCursor {
 public:
  BufferCursor() = default;
  explicit BufferCursor(std::vector<Buffer> buffers);
  [[nodiscard]] std::uint64_t left() const { return left_; }
  // Copies the next `bytes` (at most left()) out of, or into, the buffers.
  void read(std::byte* to, std::uint64_t bytes);
  void write(const std::byte* from, std::uint64_t bytes);

 private:
  template <class Copy>
  void walk(std::uint64_t bytes, Copy copy);
  std::vector<Buffer> buffers_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
  std::uint64_t left_ = 0;
};

struct Transfer {
  std::uint64_t id = 0;
  bool is_send = false;
  std::optional<Rank> peer;  // nullopt: a recv from any source
  std::int32_t tag = 0;
  DType dtype = DType::bytes;
  BufferCursor bytes;
};

// Pieces a message is cut into; an empty message is one empty piece.
inline std::uint64_t pieces_of(std::uint64_t bytes, std::uint64_t half_bytes) {
  return bytes == 0 ? 1 : (bytes + half_bytes - 1) / half_bytes;
}

// Gathers what both halves report, and words their errors.
class TransferReport {
 public:
  explicit TransferReport(PointToPoint::Options options) : options_(std::move(options)) {}

  // A word that `peer` may wait for was stored.
  void touch(Rank peer) { touched_.insert(peer); }
  void finish(const Transfer& transfer, Status status, Rank source = {});
  std::vector<Rank> take_touched();
  std::vector<PointToPoint::Finished> take_finished() { return std::exchange(finished_, {}); }
  [[nodiscard]] bool touched() const { return !touched_.empty(); }

  [[nodiscard]] const PointToPoint::Options& options() const { return options_; }
  // "slot 2"
  [[nodiscard]] std::string name_of(Rank member) const;
  // A status with the transfer's facts as fields; the text is "recv of tag 5 from slot 2 in group g: <why>".
  [[nodiscard]] Status failure(const Transfer& transfer, Rank peer, Fault fault, Move move, std::string_view why) const;
  [[nodiscard]] Status lost(const Transfer& transfer, Rank peer, std::string_view reason) const;

 private:
  PointToPoint::Options options_;
  std::set<Rank> touched_;
  std::vector<PointToPoint::Finished> finished_;
};

}  // namespace closeranks::communicator
