// SPDX-License-Identifier: Apache-2.0
// Threads that wait for each other: barriers of a block, and collectives of the lanes of a warp or
// the threads of a warpgroup.
#pragma once
#include <cstdint>
#include <cstring>

#include "emulator/sanitizers.h"
#include "emulator/scheduler.h"

namespace simt {

enum class Lines { kAny, kSame };  // whether all must arrive at the same source line

// Waits until `threads` threads have arrived at the barrier.
void barrier(Barrier& meeting, unsigned threads, Lines lines, const char* name, Place place);

void sync_threads(Place place);

// All threads of the cluster.
void sync_cluster(Place place);

void sync_threads_of(int number, unsigned threads, Place place);

// Ends the phase of an mbarrier if nothing is missing any more. Call it unwatched, like the next
// two functions.
void mbarrier_end_phase(Mbarrier& barrier);

// Arrives once at an mbarrier.
void mbarrier_arrive(Mbarrier& barrier);

// Waits until the phase of this parity has ended.
void mbarrier_wait(Mbarrier& barrier, uint32_t parity, Place place);

enum class Order { kNone, kMemory };

// Brings the lanes of `mask` together. Each gives its `argument`; when the last one has arrived,
// meet(lanes, mask) reads and writes the arguments of all, through lanes[i], a pointer to that of
// lane i. Does not order memory unless asked to, like CUDA.
template <class Argument, class Meet>
void collective(uint32_t mask, const char* name, Lines lines, Order order, Place place,
                Argument& argument, Meet meet) {
  const sanitizers::Unwatched unwatched;
  const Thread& self = *current;
  if (!(mask >> self.lane & 1)) {
    fail("lane %u is not in the mask %#x of its %s (%s:%d)", self.lane, mask, name,
         place.file_name(), place.line);
  }
  Warp& warp = self.block->warps[self.warp];
  LaneMeeting& meeting = warp.meeting(mask);
  if (meeting.arrived == 0) {
    meeting.name = name;
    meeting.place = place;
  }
  const bool same_name = meeting.name == name || std::strcmp(meeting.name, name) == 0;
  if (!same_name || (lines == Lines::kSame && meeting.place != place)) {
    fail("lane %u is at %s (%s:%d), other lanes of its warp are at %s (%s:%d)", self.lane, name,
         place.file_name(), place.line, meeting.name, meeting.place.file_name(),
         meeting.place.line);
  }
  void* const memory_order = meeting.order();
  if (order == Order::kMemory) sanitizers::release(memory_order);
  meeting.lanes |= uint32_t{1} << self.lane;
  meeting.arguments[self.lane] = &argument;
  if (++meeting.arrived == meeting.expected) {
    meet(reinterpret_cast<Argument* const*>(meeting.arguments), mask);
    warp.ready |= mask;
    meeting.lanes = 0;
    meeting.pass();
  } else {
    wait();
  }
  if (order == Order::kMemory) sanitizers::acquire(memory_order);
}

// Brings all threads of the warpgroup together, as `collective` does for lanes: when the last one
// has arrived, meet(arguments) sees the arguments of all. Does not order memory.
template <class Argument, class Meet>
void warpgroup_collective(const char* name, Place place, Argument& argument, Meet meet) {
  const sanitizers::Unwatched unwatched;
  const Thread& self = *current;
  Block& block = *self.block;
  const unsigned group = self.warp / kWarpgroup, first = group * kWarpgroup;
  if ((first + kWarpgroup) * kWarpSize > block.threads.size()) {
    fail("%s is for 128 threads, warps %u to %u, but the block ends with thread %u (%s:%d)", name,
         first, first + kWarpgroup - 1, static_cast<unsigned>(block.threads.size() - 1),
         place.file_name(), place.line);
  }
  WarpgroupMeeting& meeting = block.warpgroups[group];
  if (meeting.arrived == 0) {
    meeting.name = name;
    meeting.place = place;
    meeting.expected = kWarpgroup * kWarpSize;
  }
  if (meeting.place != place) {
    fail("warp %u is at %s (%s:%d), other threads of its warpgroup are at %s (%s:%d)", self.warp,
         name, place.file_name(), place.line, meeting.name, meeting.place.file_name(),
         meeting.place.line);
  }
  meeting.lanes[self.warp - first] |= uint32_t{1} << self.lane;
  meeting.arguments[(self.warp - first) * kWarpSize + self.lane] = &argument;
  if (++meeting.arrived == meeting.expected) {
    meet(reinterpret_cast<Argument* const*>(meeting.arguments));
    for (unsigned i = 0; i < kWarpgroup; ++i) {
      block.warps[first + i].ready = ~uint32_t{0};
      meeting.lanes[i] = 0;
    }
    meeting.pass();
  } else {
    wait();
  }
}

}  // namespace simt
