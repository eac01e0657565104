// The fields of every message, each named once: encoder and decoder walk the same lists, so they cannot differ.
// An archive has field(key, value) for every type used here, number(key, value, maximum) for bare integers and
// require(holds, what) for what must hold between fields. Private to the codec.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "control/codec.h"

namespace closeranks::control {

// A Message, const when it is being written.
template <class Given, class Message>
concept Like = std::same_as<std::remove_const_t<Given>, Message>;

void fields(auto& archive, Like<membership::Departure> auto& m) {
  archive.field("worker", m.worker);
  archive.field("slot", m.slot);
  archive.field("view", m.view);
  archive.number("last_op", m.last_op, sequence_limit);
}

void fields(auto& archive, Like<membership::ObservedEntry> auto& m) {
  archive.field("worker", m.worker);
  archive.number("entered", m.entered, sequence_limit);
}

void fields(auto& archive, Like<membership::ChunkState> auto& m) {
  archive.number("sequence", m.sequence, sequence_limit);
  archive.number("chunk", m.chunk, chunk_limit);
  archive.number("state", m.state, 2);
  archive.number("contributors", m.contributors, std::numeric_limits<std::uint64_t>::max());
}

void fields(auto& archive, Like<membership::GroupStatus> auto& m) {
  archive.field("group", m.group);
  archive.field("name", m.name);
  archive.field("members", m.members);
  archive.field("policy", m.policy);
  archive.field("view", m.view);
  archive.number("entered", m.entered, sequence_limit);
  archive.number("completed", m.completed, sequence_limit);
  archive.field("departures", m.departures);
  archive.field("observed", m.observed);
  archive.field("chunks", m.chunks);
  archive.field("epoch", m.epoch);
  archive.number("base", m.base, sequence_limit);
  archive.field("alone", m.alone);
  archive.require(m.completed <= m.entered, "a group that completed more than it entered");
}

void fields(auto& archive, Like<membership::GroupResolution> auto& m) {
  archive.field("group", m.group);
  archive.field("view", m.view);
  archive.field("departures", m.departures);
  archive.field("epoch", m.epoch);
  archive.number("base", m.base, sequence_limit);
}

void fields(auto& archive, Like<membership::ExcludedMember> auto& m) {
  archive.field("worker", m.worker);
  archive.field("slot", m.slot);
  archive.field("view", m.view);
  archive.field("reason", m.reason);
}

void fields(auto& archive, Like<membership::WorkerAddress> auto& m) {
  archive.field("worker", m.worker);
  archive.field("slot", m.slot);
  archive.number("pid", m.pid, std::numeric_limits<std::int32_t>::max());
  archive.field("host", m.host);
  archive.field("endpoint", m.endpoint);
}

void fields(auto& archive, Like<membership::Filled> auto& m) {
  archive.field("slot", m.slot);
  archive.field("worker", m.worker);
}

void fields(auto& archive, Like<membership::GroupIntroduction> auto& m) {
  archive.field("group", m.group);
  archive.field("name", m.name);
  archive.field("members", m.members);
  archive.field("policy", m.policy);
}

void fields(auto& archive, Like<membership::GroupProgress> auto& m) {
  archive.field("group", m.group);
  archive.field("name", m.name);
  archive.number("entered", m.entered, sequence_limit);
  archive.number("completed", m.completed, sequence_limit);
  archive.field("waiting", m.waiting);
  archive.number("waited_ms", m.waited_ms, std::numeric_limits<std::uint32_t>::max());
  archive.field("op", m.op);
  archive.field("waits_for", m.waits_for);
  archive.require(m.completed <= m.entered, "a group that completed more than it entered");
}

// ---- worker -> coordinator ---------------------------------------------------------------------------------------

void fields(auto& archive, Like<membership::Hello> auto& m) {
  archive.field("self", m.self);
  archive.field("installed", m.installed);
  archive.field("prepared", m.prepared);
}

void fields(auto& archive, Like<membership::Prepared> auto& m) {
  archive.field("view", m.view);
  archive.field("from", m.from);
  archive.field("statuses", m.statuses);
}

void fields(auto& archive, Like<membership::Suspicion> auto& m) {
  archive.field("from", m.from);
  archive.field("suspect", m.suspect);
  archive.field("reason", m.reason);
  archive.field("in_op", m.in_op);
  archive.field("seems_gone", m.seems_gone);
}

void fields(auto& archive, Like<membership::OpRepaired> auto& m) {
  archive.field("from", m.from);
  archive.field("group", m.group);
  archive.number("sequence", m.sequence, sequence_limit);
  archive.field("op", m.op);
  archive.field("contributors", m.contributors);
  archive.number("blocks_taken_over", m.blocks_taken_over, std::numeric_limits<std::uint32_t>::max());
}

void fields(auto& archive, Like<membership::Goodbye> auto& m) {
  archive.field("from", m.from);
  archive.field("for_good", m.for_good);
}

void fields(auto& archive, Like<membership::JoinRequest> auto& m) {
  archive.field("from", m.from);
  archive.field("groups", m.groups);
}

void fields(auto& archive, Like<membership::Holding> auto& m) {
  archive.field("round", m.round);
  archive.field("from", m.from);
  archive.number("step", m.step, sequence_limit);
}

void fields(auto& archive, Like<membership::StateServed> auto& m) {
  archive.field("round", m.round);
  archive.field("from", m.from);
}

void fields(auto& archive, Like<membership::StateReceived> auto& m) {
  archive.field("round", m.round);
  archive.field("from", m.from);
}

void fields(auto& archive, Like<membership::JoinFailed> auto& m) {
  archive.field("round", m.round);
  archive.field("from", m.from);
  archive.field("reason", m.reason);
}

void fields(auto& archive, Like<membership::Progress> auto& m) {
  archive.field("from", m.from);
  archive.number("step", m.step, sequence_limit);
  archive.field("in_session", m.in_session);
  archive.field("groups", m.groups);
}

void fields(auto& archive, Like<membership::FirstStep> auto& m) {
  archive.field("from", m.from);
  archive.number("step", m.step, sequence_limit);
}

void fields(auto& archive, Like<membership::Pause> auto& m) {
  archive.field("from", m.from);
  archive.field("what", m.what);
  archive.number("up_to_ms", m.up_to_ms, std::numeric_limits<std::uint32_t>::max());
}

// ---- agent -> coordinator ----------------------------------------------------------------------------------------

void fields(auto& archive, Like<membership::AgentHello> auto& m) {
  archive.field("host", m.host);
  archive.number("pid", m.pid, std::numeric_limits<std::int32_t>::max());
}

void fields(auto& archive, Like<membership::AgentSuspicion> auto& m) {
  archive.field("worker", m.worker);
  archive.field("reason", m.reason);
}

void fields(auto& archive, Like<membership::Fenced> auto& m) {
  archive.field("worker", m.worker);
  archive.field("by_itself", m.by_itself);
  archive.field("reaped", m.reaped);
  archive.field("wait_status", m.wait_status);
  archive.field("reason", m.reason);
}

void fields(auto& archive, Like<membership::Exited> auto& m) {
  archive.field("worker", m.worker);
  archive.field("wait_status", m.wait_status);
  archive.field("reason", m.reason);
}

void fields(auto& archive, Like<membership::Started> auto& m) {
  archive.field("worker", m.worker);
  archive.field("slot", m.slot);
}

void fields(auto& archive, Like<membership::Drain> auto& m) { archive.field("reason", m.reason); }

void fields(auto& archive, Like<membership::Resize> auto& m) { archive.number("present", m.present, slot_limit); }

// ---- coordinator -> worker ---------------------------------------------------------------------------------------

void fields(auto& archive, Like<membership::Welcome> auto& m) {
  archive.number("term", m.term, std::numeric_limits<std::uint32_t>::max());
  archive.field("view", m.view);
  archive.field("workers", m.workers);
  archive.field("excluded", m.excluded);
  archive.field("newcomer", m.newcomer);
  archive.field("members", m.members);
}

void fields(auto& archive, Like<membership::Propose> auto& m) {
  archive.field("view", m.view);
  archive.field("excluding", m.excluding);
}

void fields(auto& archive, Like<membership::Install> auto& m) {
  archive.field("view", m.view);
  archive.field("excluded", m.excluded);
  archive.field("groups", m.groups);
  archive.field("members", m.members);
  archive.field("joined", m.joined);
}

void fields(auto& archive, Like<membership::Hold> auto& m) {
  archive.field("round", m.round);
  archive.field("newcomers", m.newcomers);
}

void fields(auto& archive, Like<membership::Admit> auto& m) {
  archive.field("round", m.round);
  archive.number("step", m.step, sequence_limit);
}

void fields(auto& archive, Like<membership::Transfer> auto& m) {
  archive.field("round", m.round);
  archive.number("step", m.step, sequence_limit);
  archive.field("newcomers", m.newcomers);
  archive.field("sources", m.sources);
}

void fields(auto& archive, Like<membership::Cancel> auto& m) {
  archive.field("round", m.round);
  archive.field("reason", m.reason);
}

void fields(auto&, Like<membership::JobFinished> auto&) {}

void fields(auto& archive, Like<membership::Leave> auto& m) { archive.field("reason", m.reason); }

void fields(auto& archive, Like<membership::Evicted> auto& m) {
  archive.number("term", m.term, std::numeric_limits<std::uint32_t>::max());
  archive.field("view", m.view);
  archive.field("worker", m.worker);
  archive.field("reason", m.reason);
}

// ---- coordinator -> agent ----------------------------------------------------------------------------------------

void fields(auto& archive, Like<membership::Fence> auto& m) {
  archive.field("worker", m.worker);
  archive.field("reason", m.reason);
  archive.field("keep_stack", m.keep_stack);
}

}  // namespace closeranks::control
