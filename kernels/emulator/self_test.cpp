// SPDX-License-Identifier: Apache-2.0
// Small kernels, some of them wrong on purpose, that show what the emulator runs and detects:
// self_test CASE SEED... prints the output of a kernel, or its statistics, for each seed.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/warp.cuh"

namespace {

using namespace flashsparse;

constexpr int kThreads = 64, kBlocks = 12;
constexpr uint32_t kAll = ~0u;

unsigned block_index() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
unsigned thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
unsigned lane() { return thread_index() % 32; }

// ---- schedules and shared memory ----

// Reverses the values of a block through shared memory.
__global__ void reverse(const uint32_t* in, uint32_t* out, bool with_barrier) {
  FS_SHARED(uint32_t, shared, kThreads);
  const uint32_t base = block_index() * kThreads, thread = thread_index();
  shared[thread] = in[base + thread];
  if (with_barrier) __syncthreads();
  out[base + thread] = shared[kThreads - 1 - thread];
}

// The last block to arrive adds what all have written. Without `arrive` nothing orders the blocks.
__global__ void add_in_last_block(const uint32_t* in, float* partial, uint32_t* counter,
                                  bool with_arrive, uint32_t* out) {
  FS_SHARED(uint32_t, before, 1);
  const uint32_t thread = thread_index();
  partial[block_index() * kThreads + thread] = in[block_index() * kThreads + thread];
  __syncthreads();
  if (thread == 0) *before = with_arrive ? arrive(counter) : atomicAdd(counter, 1u);
  __syncthreads();
  if (*before != kBlocks - 1) return;
  float sum = 0;
  for (int block = 0; block < kBlocks; ++block) sum += load_l2(partial + block * kThreads + thread);
  out[thread] = sum;
}

__global__ void all_store(uint16_t value, uint32_t* out) {
  FS_SHARED(uint16_t, shared, 2);
  store_shared_same(shared_address(shared + thread_index() % 2), value);
  __syncthreads();
  out[block_index() * kThreads + thread_index()] = shared[0] + shared[1];
}

__global__ void note_order(std::vector<uint32_t>* order) {
  order->push_back(block_index() * kThreads + thread_index());
}

// The second block must not find what the first has written, here or in dynamic memory.
__global__ void read_unwritten(uint32_t* out) {
  FS_SHARED(uint32_t, shared, kThreads);
  FS_DYNAMIC_SHARED(dynamic);
  const uint32_t address = shared_address(dynamic) + 4 * thread_index();
  out[block_index() * kThreads + thread_index()] =
      shared[thread_index()] & load_shared<uint32_t>(address);
  shared[thread_index()] = 1;
  store_shared(address, 1u);
}

// ---- races ----

// Lanes exchange values through shared memory. A shuffle synchronizes them, but only __syncwarp
// orders their memory.
__global__ void pass_in_warp(const uint32_t* in, uint32_t* out, bool with_syncwarp) {
  FS_SHARED(uint32_t, shared, kThreads);
  shared[thread_index()] = in[thread_index()];
  if (with_syncwarp)
    __syncwarp();
  else
    __shfl_sync(kAll, 0, 0);
  out[block_index() * kThreads + thread_index()] = shared[thread_index() ^ 1];
}

// Each warp reads with ldmatrix what the other one has stored.
__global__ void pass_to_ldmatrix(uint32_t* out, bool with_barrier) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t base = shared_address(shared), thread = thread_index();
  store_shared(base + 16 * thread, make_uint4(thread, thread, thread, thread));
  if (with_barrier) __syncthreads();
  uint32_t r[4];
  ldmatrix_x4(r, base + 16 * (thread ^ 32));
  out[block_index() * kThreads + thread] = r[0];
}

// A copy may land as soon as it has started: all must have read what it overwrites.
__global__ void copy_too_early(const uint32_t* in, uint32_t* out, bool with_barrier) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t base = shared_address(shared), thread = thread_index();
  store_shared(base + 4 * thread, thread);
  __syncthreads();
  out[block_index() * kThreads + thread] = load_shared<uint32_t>(base + 4 * (thread ^ 1));
  if (with_barrier) __syncthreads();
  copy_async<4>(base + 4 * thread, in + thread, true);
  copy_async_commit();
  __syncthreads();
  copy_async_wait<0>();
}

__global__ void same_place_of_two_blocks(uint32_t* out) { out[thread_index()] = block_index(); }

// ---- what is wrong on any schedule ----

__global__ void overrun(uint32_t length) {
  FS_SHARED(uint32_t, shared, kThreads);
  shared[thread_index() + length] = 0;
}

__global__ void dynamic_overrun() {
  FS_DYNAMIC_SHARED(shared);
  shared[4 * kThreads + thread_index()] = 0;
}

__global__ void misaligned(const uint32_t* in, uint32_t offset, uint32_t* out) {
  out[thread_index()] = reinterpret_cast<const uint4*>(in + offset)->w;
}

__global__ void misaligned_load(const uint32_t* in) {
  load_streaming(reinterpret_cast<const uint4*>(in + 1));
}

__global__ void shared_access(uint32_t address) { store_shared(address, 1u); }

__global__ void address_of_global(const uint32_t* in) { shared_address(in); }

__global__ void two_barriers() {
  if (thread_index() < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

__global__ void early_end() {
  if (thread_index() < 32) return;
  __syncthreads();
}

// Lanes 3 and 17 of the second warp end before the others call the collective.
__global__ void absent_lanes() {
  if (thread_index() == 35 || thread_index() == 49) return;
  float d[4] = {};
  const uint32_t a[4] = {};
  mma_m16n8k16<Float16>(d, a, 0, 0);
}

__global__ void lanes_elsewhere() {
  if (lane() < 2) __syncthreads();
  __shfl_sync(kAll, 1, 0);
  if (lane() >= 2) __syncthreads();
}

__global__ void different_collectives() {
  uint32_t r[4];
  if (lane() < 16)
    ldmatrix_x4(r, 0);
  else
    __shfl_sync(kAll, 1, 0);
}

__global__ void not_in_mask() { __syncwarp(0xffff); }

__global__ void shuffle_from_outside() {
  if (lane() < 16) __shfl_sync(0xffffu, 1, 20);
}

__global__ void different_thread_counts() { sync_threads_of(1, thread_index() < 32 ? 64 : 32); }

__global__ void wrong_barrier() { sync_threads_of(16, 64); }

__global__ void no_wait(const uint32_t* in, uint32_t* out, bool with_wait) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t mine = shared_address(shared) + 4 * thread_index();
  copy_async<4>(mine, in + thread_index(), true);
  copy_async_commit();
  if (with_wait) copy_async_wait<0>();
  out[block_index() * kThreads + thread_index()] = load_shared<uint32_t>(mine);
  copy_async_wait<0>();
}

// Reads what the preceding kernel writes at its end, by other means than a primitive.
__global__ void read_last_kernel(const uint32_t* in, uint32_t* out, bool with_wait) {
  if (with_wait) griddepcontrol_wait();
  const uint32_t value = *(in + thread_index());
  griddepcontrol_wait();
  out[block_index() * kThreads + thread_index()] = value;
}

// Reads what the preceding kernel may be writing.
__global__ void early_load(const uint32_t* in, bool with_wait) {
  if (with_wait) griddepcontrol_wait();
  load_readonly(in + thread_index());
}

__global__ void copy_in_flight(const uint32_t* in) {
  FS_DYNAMIC_SHARED(shared);
  copy_async<4>(shared_address(shared) + 4 * thread_index(), in + thread_index(), true);
  copy_async_commit();
}

// ---- statistics: one warp, one operation a case ----

constexpr uint32_t kRowBytes = 128;

__global__ void load_words(uint32_t stride) {
  for (int times = 0; times < 3; ++times) load_shared<uint32_t>(threadIdx.x * stride * 4);
}
__global__ void load_broadcast() { load_shared<uint32_t>(16); }
__global__ void load_wide() {
  load_shared<uint2>(threadIdx.x * 8);
  load_shared<uint4>(threadIdx.x * 16);
  if (threadIdx.x < 8) load_shared<uint4>(threadIdx.x * 16);
}
// Lanes 2i and 2i + 1 store the two halves of a word.
__global__ void store_halves() { store_shared(threadIdx.x * 2, static_cast<uint16_t>(1)); }
// The same, but odd lanes in the row below: same banks, different words.
__global__ void store_halves_apart() {
  store_shared(threadIdx.x * 2 + threadIdx.x % 2 * kRowBytes, static_cast<uint16_t>(1));
}
// Rows of 128 bytes, of which each lane addresses the first 16 bytes; or those of a swizzle.
__global__ void load_matrices(bool swizzled) {
  const uint32_t row = threadIdx.x, chunk = swizzled ? row % 8 : 0;
  uint32_t r[4];
  ldmatrix_x4(r, row * kRowBytes + chunk * 16);
}
__global__ void copy_rows(const uint32_t* in) {
  copy_async<16>(threadIdx.x * 16, in + threadIdx.x * 4, threadIdx.x < 10);
  copy_async_commit();
  copy_async_wait<0>();
}
__global__ void global_words(uint32_t* in, uint32_t stride) {
  load_readonly(in + threadIdx.x * stride);
  store_global(in + threadIdx.x * stride, 1u);
}

// ---- the cases ----

void run_case(const char* name, unsigned seed) {
  const auto is = [&](const char* one) { return std::strcmp(name, one) == 0; };

  const dim3 grid(2, 3, 2), block(8, 4, 2);
  std::vector<uint32_t> in(kBlocks * kThreads), out(in.size(), 7), order;
  for (size_t i = 0; i < in.size(); ++i) in[i] = i;
  const auto run = [&](auto kernel) {
    simt::launch(grid, block, 16 * kThreads, seed, kernel);
    for (const uint32_t value : out) std::printf("%u\n", value);
  };

  if (is("reverse")) run([&] { reverse(in.data(), out.data(), true); });
  if (is("reverse_race")) run([&] { reverse(in.data(), out.data(), false); });
  if (is("all_store")) run([&] { all_store(5, out.data()); });
  if (is("read_unwritten")) run([&] { read_unwritten(out.data()); });
  if (is("order")) {
    simt::launch(kBlocks, kThreads, seed, [&] { note_order(&order); });
    for (const uint32_t value : order) std::printf("%u\n", value);
  }
  if (is("large_blocks")) {
    simt::launch(2, 1024, seed, [&] { note_order(&order); });
    std::printf("%zu\n", order.size());
  }
  std::vector<float> partial(in.size());
  uint32_t counter = 0;
  const auto add = [&](bool with_arrive) {
    run([&] { add_in_last_block(in.data(), partial.data(), &counter, with_arrive, out.data()); });
  };
  if (is("last_block")) add(true);
  if (is("last_block_race")) add(false);

  if (is("syncwarp")) run([&] { pass_in_warp(in.data(), out.data(), true); });
  if (is("syncwarp_race")) run([&] { pass_in_warp(in.data(), out.data(), false); });
  if (is("ldmatrix")) run([&] { pass_to_ldmatrix(out.data(), true); });
  if (is("ldmatrix_race")) run([&] { pass_to_ldmatrix(out.data(), false); });
  if (is("copy_early")) run([&] { copy_too_early(in.data(), out.data(), true); });
  if (is("copy_early_race")) run([&] { copy_too_early(in.data(), out.data(), false); });
  if (is("blocks_race")) run([&] { same_place_of_two_blocks(out.data()); });

  if (is("overrun")) run([&] { overrun(1); });
  if (is("dynamic_overrun"))
    simt::launch(grid, block, 4 * kThreads, seed, [&] { dynamic_overrun(); });
  if (is("misaligned")) run([&] { misaligned(in.data(), 1, out.data()); });
  if (is("misaligned_load")) run([&] { misaligned_load(in.data()); });
  if (is("shared_out_of_bounds")) run([&] { shared_access(16 * kThreads - 2); });
  if (is("shared_misaligned")) run([&] { shared_access(2); });
  if (is("address_of_global")) run([&] { address_of_global(in.data()); });
  if (is("two_barriers")) run([&] { two_barriers(); });
  if (is("early_end")) run([&] { early_end(); });
  if (is("absent_lanes")) run([&] { absent_lanes(); });
  if (is("lanes_elsewhere")) run([&] { lanes_elsewhere(); });
  if (is("different_collectives")) run([&] { different_collectives(); });
  if (is("not_in_mask")) run([&] { not_in_mask(); });
  if (is("shuffle_from_outside")) run([&] { shuffle_from_outside(); });
  if (is("different_thread_counts")) run([&] { different_thread_counts(); });
  if (is("wrong_barrier")) run([&] { wrong_barrier(); });
  if (is("wait")) run([&] { no_wait(in.data(), out.data(), true); });
  if (is("no_wait")) run([&] { no_wait(in.data(), out.data(), false); });
  const auto load_early = [&](bool with_wait) {
    const simt::UsedByLastKernel used(in.data(), in.size());
    run([&] { early_load(in.data(), with_wait); });
  };
  if (is("waited_load")) load_early(true);
  if (is("early_load")) load_early(false);
  const auto read_last = [&](bool with_wait) {
    const simt::UsedByLastKernel used(in.data(), in.size());
    run([&] { read_last_kernel(in.data(), out.data(), with_wait); });
  };
  if (is("last_kernel")) read_last(true);
  if (is("last_kernel_early")) read_last(false);
  if (is("copy_in_flight")) run([&] { copy_in_flight(in.data()); });
  if (is("no_blocks")) simt::launch(dim3(3, 0), 32, seed, [] {});
  if (is("too_many_threads")) simt::launch(1, 1025, seed, [] {});
  if (is("too_much_shared")) simt::launch(1, 1, 228 << 10, seed, [] {});

  const auto count = [&](auto kernel) {
    simt::statistics.on = true;
    simt::statistics.counts.clear();
    simt::launch(1, 32, 32 * kRowBytes, seed, kernel);
    simt::statistics.write_json(stdout);
  };
  alignas(32) static uint32_t global[32 * 32];
  if (is("count_row")) count([] { load_words(1); });
  if (is("count_stride_2")) count([] { load_words(2); });
  if (is("count_stride_32")) count([] { load_words(32); });
  if (is("count_broadcast")) count([] { load_broadcast(); });
  if (is("count_wide")) count([] { load_wide(); });
  if (is("count_halves")) count([] { store_halves(); });
  if (is("count_halves_apart")) count([] { store_halves_apart(); });
  if (is("count_matrices")) count([] { load_matrices(false); });
  if (is("count_matrices_swizzled")) count([] { load_matrices(true); });
  if (is("count_copies")) count([&] { copy_rows(global); });
  if (is("count_global")) count([&] { global_words(global, 1); });
  if (is("count_global_stride_8")) count([&] { global_words(global, 8); });
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) run_case(argv[1], std::strtoul(argv[i], nullptr, 10));
}
