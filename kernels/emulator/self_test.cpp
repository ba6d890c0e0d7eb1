// SPDX-License-Identifier: Apache-2.0
// Small kernels, right and wrong on purpose, that show what the emulator runs and what it catches:
// self_test CASE [SEED].
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/device.cuh"

namespace {

constexpr int kThreads = 64;

unsigned block_index() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
unsigned thread_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// Turns the values of a block around through shared memory.
__global__ void reverse(const uint32_t* in, uint32_t* out, bool with_barrier) {
  FS_SHARED(uint32_t, shared, kThreads);
  const uint32_t base = block_index() * kThreads, thread = thread_index();
  shared[thread] = in[base + thread];
  if (with_barrier) __syncthreads();
  out[base + thread] = shared[kThreads - 1 - thread];
}

__global__ void all_store(uint16_t value, uint32_t* out) {
  FS_SHARED(uint16_t, shared, 2);
  flashsparse::store_same(shared + thread_index() % 2, value);
  __syncthreads();
  out[block_index() * kThreads + thread_index()] = shared[0];
}

__global__ void note_order(std::vector<uint32_t>* order) { order->push_back(thread_index()); }

// The second block finds nothing of what the first has written.
__global__ void read_unwritten(uint32_t* out) {
  FS_SHARED(uint32_t, shared, kThreads);
  out[block_index() * kThreads + thread_index()] = shared[thread_index()];
  shared[thread_index()] = 1;
}

__global__ void overrun(uint32_t length) {
  FS_SHARED(uint32_t, shared, kThreads);
  shared[thread_index() + length] = 0;
}

__global__ void misaligned(const uint32_t* in, uint32_t offset, uint32_t* out) {
  out[thread_index()] = __ldcs(reinterpret_cast<const uint4*>(in + offset)).w;
}

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

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 1;
  const auto is = [&](const char* name) { return std::strcmp(argv[1], name) == 0; };
  const unsigned seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;

  const dim3 grid(2, 3, 2), block(8, 4, 2);
  std::vector<uint32_t> in(12 * kThreads), out(in.size(), 7), order;
  for (size_t i = 0; i < in.size(); ++i) in[i] = i;
  const auto run = [&](auto kernel) { simt::launch(grid, block, seed, kernel); };

  if (is("reverse")) run([&] { reverse(in.data(), out.data(), true); });
  if (is("race")) run([&] { reverse(in.data(), out.data(), false); });
  if (is("all_store")) run([&] { all_store(5, out.data()); });
  if (is("read_unwritten")) run([&] { read_unwritten(out.data()); });
  if (is("overrun")) run([&] { overrun(1); });
  if (is("misaligned")) run([&] { misaligned(in.data(), 1, out.data()); });
  if (is("two_barriers")) run([&] { two_barriers(); });
  if (is("early_end")) run([&] { early_end(); });
  if (is("order")) {
    simt::launch(1, kThreads, seed, [&] { note_order(&order); });
    out = order;
  }
  for (const uint32_t value : out) std::printf("%u\n", value);
}
