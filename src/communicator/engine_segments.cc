// A coordinated job: the peers' lives, arenas and segments are fetched in the background, on the control thread, which
// never waits for one of them. A peer's server answers once the peer has made the group.
#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "base/log.h"
#include "communicator/engine_core.h"

namespace closeranks::communicator {
namespace {

// After a fetch that failed: the peer may be about to be excluded, or its server was overrun.
constexpr std::chrono::milliseconds retry_after{200};

}  // namespace

void EngineCore::fetch_for(const std::shared_ptr<Group>& group) {
  std::vector<std::pair<Rank, std::shared_ptr<Peer>>> segments;
  std::vector<std::shared_ptr<Peer>> lives;
  std::vector<std::shared_ptr<Peer>> arenas;
  {
    const std::lock_guard lock(lock_);
    if (ended_ || !group->health().ok() || group->alone()) return;
    Members& members = group->members();
    for (std::uint32_t r = 0; r < members.size(); ++r) {
      const Rank rank{r};
      const std::shared_ptr<Peer>& peer = members.peer(rank);
      if (!peer || !group->has_present(members.slot(rank))) continue;
      if (!peer->life.has_value() && !peer->fetching_life) {
        peer->fetching_life = true;
        lives.push_back(peer);
      }
      if (!peer->arena.has_value() && !peer->fetching_arena) {
        peer->fetching_arena = true;
        arenas.push_back(peer);
      }
      if (members.segment(rank) == nullptr && !members.fetching(rank)) {
        members.fetching(rank) = true;
        segments.emplace_back(rank, peer);
      }
    }
  }
  for (const auto& peer : lives) fetch_life(peer);
  for (const auto& peer : arenas) fetch_arena(peer);
  for (const auto& [rank, peer] : segments) fetch_segment_of(group, rank, peer);
}

void EngineCore::fetch_life(const std::shared_ptr<Peer>& peer) {
  const auto attach = [this, peer](Result<FileDescriptor> descriptor) {
    Status failed = descriptor.status();
    if (failed.ok()) {
      auto life = transport::PeerLife::attach(std::move(descriptor.value()), {options_.job, peer->worker, peer->slot},
                                              options_.slot.value());
      failed = life.status();
      if (life.ok()) {
        change([&] {
          peer->fetching_life = false;
          peer->life.emplace(std::move(life.value()));
        });
        return;
      }
      log::warning(failed.message());
    }
    change([&] {
      peer->fetching_life = false;
      peer->unreachable = peer->unreachable || failed.fault() == Fault::peer_lost;
    });
    fetch_again_later();
  };
  transport::async_fetch_segment(control_->context(), peer->endpoint, peer->token, transport::SegmentKey::life(),
                                 transport::max_segment_wait, attach);
}

void EngineCore::fetch_arena(const std::shared_ptr<Peer>& peer) {
  const auto attach = [this, peer](Result<FileDescriptor> descriptor) {
    Status failed = descriptor.status();
    if (failed.ok()) {
      auto arena =
          transport::PeerArena::attach(std::move(descriptor.value()), {options_.job, peer->worker, peer->slot});
      failed = arena.status();
      if (arena.ok()) {
        change([&] {
          peer->fetching_arena = false;
          peer->arena.emplace(std::move(arena.value()));
          for (const auto& group : groups_) {
            group->look_at_connections();
            group->flush();
          }
        });
        return;
      }
      log::warning(failed.message());
    }
    change([&] {
      peer->fetching_arena = false;
      peer->unreachable = peer->unreachable || failed.fault() == Fault::peer_lost;
    });
    fetch_again_later();
  };
  transport::async_fetch_segment(control_->context(), peer->endpoint, peer->token, transport::SegmentKey::arena(),
                                 transport::max_segment_wait, attach);
}

void EngineCore::fetch_segment_of(const std::shared_ptr<Group>& group, Rank rank, const std::shared_ptr<Peer>& peer) {
  const auto attach = [this, weak = std::weak_ptr<Group>(group), rank, peer](Result<FileDescriptor> descriptor) {
    const std::shared_ptr<Group> still = weak.lock();
    if (!still) return;
    Status failed = descriptor.status();
    if (failed.ok()) {
      auto segment = transport::Segment::attach(std::move(descriptor.value()),
                                                {options_.job, still->key(), "", peer->worker, peer->slot, rank},
                                                segment_shape(still->members().size()));
      failed = segment.status();
      if (segment.ok()) {
        change([&] {
          still->members().fetching(rank) = false;
          still->members().hold(rank, std::move(segment.value()));
          still->look_at_connections();
          still->flush();
        });
        return;
      }
      log::warning(failed.message());
    }
    change([&] {
      still->members().fetching(rank) = false;
      peer->unreachable = peer->unreachable || failed.fault() == Fault::peer_lost;
    });
    fetch_again_later();
  };
  transport::async_fetch_segment(control_->context(), peer->endpoint, peer->token,
                                 transport::SegmentKey::of(group->key()), transport::max_segment_wait, attach);
}

void EngineCore::fetch_again_later() {
  if (fetch_retry_pending_) return;
  fetch_retry_pending_ = true;
  auto timer = std::make_shared<asio::steady_timer>(control_->context(), retry_after);
  timer->async_wait([this, timer](const std::error_code& cancelled) {
    if (cancelled) return;
    fetch_retry_pending_ = false;
    std::vector<std::shared_ptr<Group>> groups;
    {
      const std::lock_guard lock(lock_);
      groups = groups_;
    }
    for (const auto& group : groups) fetch_for(group);
  });
}

}  // namespace closeranks::communicator
