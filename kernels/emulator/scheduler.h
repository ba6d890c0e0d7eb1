// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a grid, each CUDA thread on a fiber of its own. A fiber runs until it waits or
// ends; then the scheduler selects the next one.
#pragma once
#include <cstddef>
#include <functional>

#include "emulator/block.h"

namespace simt {

// Suspends the running thread until something makes it ready again. Call it unwatched.
void wait();

// griddepcontrol_wait.
void wait_for_last_kernel();

// Runs `kernel` for every thread of the grid: launch(grid, block, seed, [&] { kernel(...); }), with
// `shared_bytes` of dynamic shared memory for each block. The seed determines the order of lanes,
// warps and blocks: 0 ascending, 1 descending, both one block after another; others shuffled, with
// up to three blocks at once. The race detector sees races between blocks only if they are resident
// at once.
void launch(dim3 grid, dim3 block, size_t shared_bytes, unsigned seed,
            std::function<void()> kernel);
void launch(dim3 grid, dim3 block, unsigned seed, std::function<void()> kernel);
// The same in clusters of `cluster` blocks that are adjacent along x, which are resident at once.
void launch_clusters(unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes, unsigned seed,
                     std::function<void()> kernel);

}  // namespace simt
