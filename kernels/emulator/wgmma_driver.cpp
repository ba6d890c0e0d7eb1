// SPDX-License-Identifier: Apache-2.0
// Two warpgroups multiply 128 rows each with wgmma, correctly or with one mistake: wgmma_driver
// DTYPE TOKENS MISTAKE SEED... < in > out. In: a [256, 64] and b [tokens, 64], both of 16 bits, and
// d [256, tokens] in fp32; out: d + a b^T for each seed. Compiled with g++ it runs in the emulator,
// with nvcc -x cu on a GPU of sm_90a; without a mistake both must give the same results.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/wgmma.cuh"

namespace {

using namespace flashsparse;

enum Mistake {
  kNone,
  kNoFence,
  kNoFenceOfCopies,
  kFenceAfterBarrier,
  kNoBarrier,
  kNoBegin,
  kNoCommit,
  kNoWait,
  kReadEarly,
  kWrittenEarly,
  kOverwritten,
  kOverwrittenByOthers,
  kMisalignedTile,
  kMisalignedColumns,
  kOutOfBounds,
  kWrongFlags,
  kStaticArray,
  kMissingThread,
  kMissingWarp,
  kDifferentOperands,
  kMistakes
};
constexpr const char* kNames[] = {
    "none",         "no_fence",           "no_fence_of_copies", "fence_after_barrier",
    "no_barrier",   "no_begin",           "no_commit",          "no_wait",
    "read_early",   "written_early",      "overwritten",        "overwritten_by_others",
    "misaligned",   "misaligned_columns", "out_of_bounds",      "wrong_flags",
    "static_array", "missing_thread",     "missing_warp",       "different_operands"};
static_assert(sizeof kNames / sizeof *kNames == kMistakes);

constexpr int kRows = 256, kColumns = 64, kThreads = 256, kRowBytes = kColumns * 2;
constexpr int kTileBytes = kRows * kRowBytes, kHalfBytes = 64 * kRowBytes;

// Address of 16-byte chunk `chunk` of a row.
__device__ __forceinline__ uint32_t place_of(uint32_t tile, int row, int chunk) {
  return tile + row * kRowBytes + (chunk ^ row % 8) * 16;
}

template <class Type, int tokens, Mistake mistake>
__global__ void multiply(const uint4* a, const uint4* b, const float* d, float* out) {
  FS_DYNAMIC_SHARED(shared);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  const uint32_t a_tile = shared_address(shared), b_tile = a_tile + kTileBytes;
  for (int i = threadIdx.x; i < tokens * 8; i += blockDim.x)
    copy_async<16>(place_of(b_tile, i / 8, i % 8), b + i, true);
  copy_async_commit();
  for (int i = threadIdx.x; i < kRows * 8; i += blockDim.x)
    store_shared(place_of(a_tile, i / 8, i % 8), load_readonly(a + i));
  if (mistake == kNoFenceOfCopies) fence_for_wgmma();
  copy_async_wait<0>();
  if (mistake != kNoFence && mistake != kNoFenceOfCopies && mistake != kFenceAfterBarrier)
    fence_for_wgmma();
  if (mistake != kNoBarrier) __syncthreads();
  if (mistake == kFenceAfterBarrier) fence_for_wgmma();

  // Position in d and out of element i of the accumulators of the first or second 64 rows.
  const auto place = [&](int half, int i) {
    const int row = 128 * group + 64 * half + 16 * warp + lane / 4 + i / 2 % 2 * 8;
    return row * tokens + i / 4 * 8 + lane % 4 * 2 + i % 2;
  };
  float sums[2][tokens / 2];
  FS_UNROLL
  for (int i = 0; i < tokens; ++i) sums[i % 2][i / 2] = d[place(i % 2, i / 2)];
  uint32_t mine = a_tile + group * 2 * kHalfBytes;
  if (mistake == kMisalignedTile) mine += 128;
  if (mistake == kMisalignedColumns) mine += 16;
  if (mistake == kOutOfBounds) mine += kTileBytes;
  if (mistake == kMissingThread && threadIdx.x == 170) return;
  if (mistake != kNoBegin) wgmma_begin();
  FS_UNROLL
  for (int step = 0; step < 4; ++step) {
    uint64_t left = wgmma_operand(mine + 32 * step);
    uint64_t right = wgmma_moved(wgmma_operand(b_tile), 32 * step);
    if (mistake == kWrongFlags) left ^= uint64_t{1} << 63;
    if (mistake == kDifferentOperands && lane == 5) right += 2;
#ifndef __CUDACC__
    if (mistake == kStaticArray) {
      FS_SHARED(uint16_t, array, kTileBytes / 2);
      left = wgmma_operand(shared_address(array));
    }
#endif
    wgmma<Type, tokens>(sums[0], left, right);
    if (mistake == kWrittenEarly && step == 1) sums[0][1] = 0;
    wgmma<Type, tokens>(sums[1], wgmma_operand(mine + kHalfBytes + 32 * step), right);
    if (step == 1) {  // a second group, while the first is in flight
      if (mistake != kNoCommit) wgmma_commit();
      if (mistake != kNoBegin) wgmma_begin();
    }
  }
  if (mistake != kNoCommit) wgmma_commit();
  if (mistake == kOverwritten) store_shared(place_of(a_tile, threadIdx.x, 0), 1u);
  if (mistake == kReadEarly) out[place(0, 0)] = sums[0][0];
  if (mistake != kNoWait) wgmma_wait(sums[0]);
  if (mistake != kNoWait) wgmma_wait(sums[1]);
  // While other threads may still wait.
  if (mistake == kOverwrittenByOthers) store_shared(place_of(a_tile, threadIdx.x ^ 8, 0), 1u);
  FS_UNROLL
  for (int i = 0; i < tokens; ++i) {
    if (mistake != kReadEarly || i > 0) out[place(i % 2, i / 2)] = sums[i % 2][i / 2];
  }
}

struct Input {
  std::vector<uint4> a, b;
  std::vector<float> d;
};

#ifdef __CUDACC__
void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

template <class T>
T* on_device(const std::vector<T>& values) {
  T* there;
  check(cudaMalloc(&there, values.size() * sizeof(T)));
  check(cudaMemcpy(there, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return there;
}

template <class Kernel>
void run(Kernel kernel, int threads, int shared_bytes, unsigned, const Input& in,
         std::vector<float>& out) {
  float* const there = on_device(out);
  kernel<<<1, threads, shared_bytes>>>(on_device(in.a), on_device(in.b), on_device(in.d), there);
  check(cudaGetLastError());
  check(cudaMemcpy(out.data(), there, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
}
#else
template <class Kernel>
void run(Kernel kernel, int threads, int shared_bytes, unsigned seed, const Input& in,
         std::vector<float>& out) {
  simt::launch(1, threads, shared_bytes, seed,
               [&] { kernel(in.a.data(), in.b.data(), in.d.data(), out.data()); });
}
#endif

template <class T>
void read(std::vector<T>& values, size_t count) {
  values.resize(count);
  if (std::fread(values.data(), sizeof(T), count, stdin) == count) return;
  std::fprintf(stderr, "too little input\n");
  std::exit(1);
}

template <class Type, int tokens, Mistake mistake = kNone>
void run_case(int seeds, char** seed) {
  Input in;
  read(in.a, kTileBytes / sizeof(uint4));
  read(in.b, tokens * kRowBytes / sizeof(uint4));
  read(in.d, kRows * tokens);
  for (int i = 0; i < seeds; ++i) {
    std::vector<float> out(kRows * tokens);
    run(multiply<Type, tokens, mistake>, mistake == kMissingWarp ? kThreads - 32 : kThreads,
        kTileBytes + tokens * kRowBytes, std::strtoul(seed[i], nullptr, 10), in, out);
    std::fwrite(out.data(), sizeof(float), out.size(), stdout);
  }
}

template <class Type>
bool run_tokens(int tokens, int seeds, char** seed) {
  if (tokens == 8) return run_case<Type, 8>(seeds, seed), true;
  if (tokens == 16) return run_case<Type, 16>(seeds, seed), true;
  if (tokens == 32) return run_case<Type, 32>(seeds, seed), true;
  if (tokens == 64) return run_case<Type, 64>(seeds, seed), true;
  if (tokens == 128) return run_case<Type, 128>(seeds, seed), true;
  return false;
}

#ifndef __CUDACC__
template <int mistake = 1>
bool run_mistake(const char* name, int seeds, char** seed) {
  if constexpr (mistake == kMistakes) {
    return false;
  } else {
    if (std::strcmp(name, kNames[mistake]) != 0) return run_mistake<mistake + 1>(name, seeds, seed);
    return run_case<BFloat16, 8, static_cast<Mistake>(mistake)>(seeds, seed), true;
  }
}
#else
bool run_mistake(const char*, int, char**) { return false; }  // a GPU may hang
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 1;
  const bool bfloat16 = std::strcmp(argv[1], "bfloat16") == 0;
  const int tokens = std::atoi(argv[2]), seeds = argc - 4;
  bool ran = false;
  if (std::strcmp(argv[3], kNames[kNone]) != 0)
    ran = run_mistake(argv[3], seeds, argv + 4);  // of bfloat16, 8 tokens
  else if (bfloat16)
    ran = run_tokens<BFloat16>(tokens, seeds, argv + 4);
  else
    ran = run_tokens<Float16>(tokens, seeds, argv + 4);
  if (!ran) std::fprintf(stderr, "no such case\n");
  return !ran;
}
