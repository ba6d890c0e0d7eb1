// SPDX-License-Identifier: Apache-2.0
// Threads that wait for each other: barriers of a block, and collectives of the lanes of a warp.
#pragma once
#include <cstdint>

#include "emulator/sanitizers.h"
#include "emulator/scheduler.h"

namespace simt {

// Waits until `threads` threads of the block have come to the barrier of this number.
inline void barrier(int number, unsigned threads, const char* name, Place place) {
  void* order = nullptr;
  {
    const sanitizers::Unwatched unwatched;
    order = current->block->barriers[number].order();
  }
  sanitizers::release(order);
  {
    const sanitizers::Unwatched unwatched;
    Meeting& meeting = current->block->barriers[number];
    if (meeting.arrived == 0) {
      meeting.name = name;
      meeting.place = place;
      meeting.expected = threads;
    }
    if (meeting.expected != threads) {
      fail("%s for %u threads (%s:%d), but others wait there for %u (%s:%d)", name, threads,
           place.file_name(), place.line, meeting.expected, meeting.place.file_name(),
           meeting.place.line);
    }
    if (number == 0 && meeting.place != place) {
      fail("some threads wait at __syncthreads on line %d, others on line %d", meeting.place.line,
           place.line);
    }
    Block& block = *current->block;
    meeting.waiting.push_back(current);
    if (++meeting.arrived == threads) {
      for (const Thread* thread : meeting.waiting)
        block.warps[thread->warp].ready |= uint32_t{1} << thread->lane;
      meeting.waiting.clear();
      meeting.arrived = 0;
      ++meeting.times;
    } else {
      Grid::wait();
    }
  }
  sanitizers::acquire(order);
}

inline void sync_threads(Place place) {
  unsigned threads = 0;
  {
    const sanitizers::Unwatched unwatched;
    threads = current->block->threads();
  }
  barrier(0, threads, "__syncthreads", place);
}

inline void sync_threads_of(int number, unsigned threads, Place place) {
  if (number < 1 || number >= Block::kBarriers || threads == 0 || threads % kWarpSize != 0)
    fail("sync_threads_of(%d, %u): barriers are 1 to 15, threads whole warps (%s:%d)", number,
         threads, place.file_name(), place.line);
  barrier(number, threads, "sync_threads_of", place);
}

enum class Order { kNone, kMemory };
enum class Lines { kAny, kSame };  // whether all lanes must come from the same line

// Brings the lanes of `mask` together: each gives its `argument`, and when the last one has come,
// meet(lanes, mask) reads and writes the arguments of all, lanes[i] being a pointer to that of lane
// i of the mask. Gives no order to memory unless asked to, as CUDA gives none.
template <class Argument, class Meet>
void collective(uint32_t mask, const char* name, Lines lines, Order order, Place place,
                Argument& argument, Meet meet) {
  LaneMeeting* meeting = nullptr;
  void* memory_order = nullptr;
  {
    const sanitizers::Unwatched unwatched;
    if (!(mask >> current->lane & 1))
      fail("lane %u is not in the mask %#x of its %s (%s:%d)", current->lane, mask, name,
           place.file_name(), place.line);
    meeting = &current->block->warps[current->warp].meeting(mask);
    memory_order = meeting->order();
  }
  if (order == Order::kMemory) sanitizers::release(memory_order);
  {
    const sanitizers::Unwatched unwatched;
    Warp& warp = current->block->warps[current->warp];
    if (meeting->arrived == 0) {
      meeting->name = name;
      meeting->place = place;
    }
    if (std::strcmp(meeting->name, name) != 0 || (lines == Lines::kSame && meeting->place != place))
      fail("lane %u is at %s (%s:%d), other lanes of its warp are at %s (%s:%d)", current->lane,
           name, place.file_name(), place.line, meeting->name, meeting->place.file_name(),
           meeting->place.line);
    meeting->lanes |= uint32_t{1} << current->lane;
    meeting->arguments[current->lane] = &argument;
    if (++meeting->arrived == meeting->expected) {
      std::array<Argument*, kWarpSize> lanes;
      for (unsigned lane = 0; lane < kWarpSize; ++lane)
        lanes[lane] = static_cast<Argument*>(meeting->arguments[lane]);
      meet(lanes, mask);
      meeting->arrived = 0;
      meeting->lanes = 0;
      ++meeting->times;
      warp.ready |= mask;
    } else {
      Grid::wait();
    }
  }
  if (order == Order::kMemory) sanitizers::acquire(memory_order);
}

}  // namespace simt
