// SPDX-License-Identifier: Apache-2.0
#include "emulator/collectives.h"

#include <cstdint>

namespace simt {

void barrier(Barrier& meeting, unsigned threads, Lines lines, const char* name, Place place) {
  const sanitizers::Unwatched unwatched;
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
  if (lines == Lines::kSame && meeting.place != place) {
    fail("some threads wait at %s on line %d, others on line %d", name, meeting.place.line,
         place.line);
  }
  void* const order = meeting.order();
  sanitizers::release(order);
  current->visible = current->fenced;
  meeting.waiting.push_back(current);
  if (++meeting.arrived == threads) {
    for (const Thread* thread : meeting.waiting)
      thread->block->warps[thread->warp].ready |= uint32_t{1} << thread->lane;
    meeting.waiting.clear();
    meeting.pass();
  } else {
    wait();
  }
  sanitizers::acquire(order);
}

void sync_threads(Place place) {
  const sanitizers::Unwatched unwatched;
  Block& block = *current->block;
  barrier(block.barriers[0], block.threads.size(), Lines::kSame, "__syncthreads", place);
}

void sync_cluster(Place place) {
  const sanitizers::Unwatched unwatched;
  const Block& block = *current->block;
  barrier(block.cluster[0]->cluster_barrier, block.cluster.size() * block.threads.size(),
          Lines::kSame, "sync_cluster", place);
}

void sync_threads_of(int number, unsigned threads, Place place) {
  if (number < 1 || number >= Block::kBarriers || threads == 0 || threads % kWarpSize != 0)
    fail("sync_threads_of(%d, %u): barriers are 1 to 15, threads whole warps (%s:%d)", number,
         threads, place.file_name(), place.line);
  barrier(current->block->barriers[number], threads, Lines::kAny, "sync_threads_of", place);
}

void mbarrier_end_phase(Mbarrier& barrier) {
  if (barrier.missing > 0 || barrier.bytes != 0) return;
  barrier.missing = barrier.expected;
  ++barrier.phases;
  for (const Thread* thread : barrier.waiting)
    thread->block->warps[thread->warp].ready |= uint32_t{1} << thread->lane;
  barrier.waiting.clear();
}

void mbarrier_arrive(Mbarrier& barrier) {
  current->visible = current->fenced;
  sanitizers::release(barrier.order(barrier.phases));
  if (barrier.missing == 0) fail("more arrivals than a barrier was made for");
  --barrier.missing;
  mbarrier_end_phase(barrier);
}

void mbarrier_wait(Mbarrier& barrier, uint32_t parity, Place place) {
  while (barrier.phases % 2 == parity) {
    barrier.place = place;
    barrier.waiting.push_back(current);
    wait();
  }
  sanitizers::acquire(barrier.order(parity));
}

}  // namespace simt
