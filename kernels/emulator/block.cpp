// SPDX-License-Identifier: Apache-2.0
#include "emulator/block.h"

#include <cstdint>
#include <memory>

namespace simt {

LaneMeeting& Warp::meeting(uint32_t mask) {
  for (const auto& meeting : meetings) {
    if (meeting->mask == mask) return *meeting;
  }
  meetings.push_back(std::make_unique<LaneMeeting>());
  meetings.back()->mask = mask;
  meetings.back()->expected = __builtin_popcount(mask);
  return *meetings.back();
}

Block::Block(unsigned count, const std::unique_ptr<Fiber>* fibers)
    : threads(count),
      warps((count + kWarpSize - 1) / kWarpSize),
      warpgroups(warps.size() / kWarpgroup) {
  for (unsigned i = 0; i < count; ++i) {
    threads[i].block = this;
    threads[i].fiber = fibers[i].get();
    threads[i].index =
        dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
    threads[i].warp = i / kWarpSize;
    threads[i].lane = i % kWarpSize;
  }
}

void Block::begin(dim3 block_index, size_t dynamic_bytes) {
  index = block_index;
  running = true;
  last_kernel_ended = false;
  alive = threads.size();
  shared.begin(dynamic_bytes);
  for (Thread& thread : threads) {
    thread.fenced = thread.visible = Stores::now;
    warps[thread.warp].ready |= uint32_t{1} << thread.lane;
    warps[thread.warp].alive |= uint32_t{1} << thread.lane;
  }
}

void Block::end() {
  for (const auto& [address, barrier] : mbarriers) {
    if (barrier.copies.in_flight())
      fail("a block ends with copies in flight that arrive at shared address %#x", address);
  }
  mbarriers.clear();
  shared.end();
  running = false;
}

void note_store(uint32_t address, size_t bytes, Place place) {
  current->block->shared.stores.note(address, bytes, current->warp * kWarpSize + current->lane,
                                     place);
}

void count(const char* operation, Place place, unsigned bytes,
           std::optional<uint32_t> shared_address, const void* global) {
  if (global && !current->block->last_kernel_ended && UsedByLastKernel::any(global, bytes))
    fail("%s of what the kernel before may still use, without a wait (%s:%d)", operation,
         place.file_name(), place.line);
  if (statistics.on)
    statistics.add(current->counters, current->block, current->warp, place, operation,
                   {current->lane, bytes, shared_address, reinterpret_cast<uintptr_t>(global)});
}

}  // namespace simt
