// SPDX-License-Identifier: Apache-2.0
// A warpgroup multiplies 64 rows in registers by gathered rows, correctly or with one mistake:
// wgmma_gathered_driver DTYPE COLUMNS MISTAKE SEED... < in > out. In: a [64, 64] and b [64,
// columns], both of 16 bits, and d [64, columns] in fp32; out: d + a b for each seed. Compiled with
// g++ it runs in the emulator, with nvcc -x cu on a GPU of sm_90a; without a mistake both must give
// the same results.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "common/device.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/wgmma_gathered.cuh"

namespace {

using namespace flashsparse;

enum Mistake {
  kNone,
  kNoFence,
  kNoBegin,
  kRegistersOverwritten,
  kOverwritten,
  kWaitForTooFew,
  kMisaligned,
  kOutOfBounds,
  kShortSlabs,
  kWrongFlags,
  kMistakes
};
constexpr const char* kNames[] = {
    "none",        "no_fence",         "no_begin",   "registers_overwritten",
    "overwritten", "wait_for_too_few", "misaligned", "out_of_bounds",
    "short_slabs", "wrong_flags"};
static_assert(sizeof kNames / sizeof *kNames == kMistakes);

constexpr int kRows = 64, kDepth = 64, kThreads = 128;

template <class Type, int columns, Mistake mistake>
__global__ void multiply(const uint16_t* a, const uint4* b, const float* d, float* out) {
  FS_DYNAMIC_SHARED(dynamic);
  constexpr int kChunks = columns / 8;
  constexpr uint32_t kSlabBytes = kDepth * kSlabRowBytes;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t shared = shared_address(dynamic);
  for (int i = threadIdx.x; i < kDepth * kChunks; i += kThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    store_shared(slab_place(shared + chunk / 8 * kSlabBytes, row, chunk % 8), load_readonly(b + i));
  }
  if (mistake != kNoFence) fence_for_wgmma();
  __syncthreads();

  uint32_t rows[kDepth / 16][4];
  FS_UNROLL
  for (int i = 0; i < kDepth / 4; ++i) {
    const int row = warp * 16 + lane / 4 + i % 2 * 8;
    const int k = i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2;
    rows[i / 4][i % 4] = load_readonly(reinterpret_cast<const uint32_t*>(a + row * kDepth + k));
  }
  const auto place = [&](int i) {
    const int row = 16 * warp + lane / 4 + i / 2 % 2 * 8;
    return row * columns + i / 4 * 8 + lane % 4 * 2 + i % 2;
  };
  float sums[columns / 2];
  FS_UNROLL
  for (int i = 0; i < columns / 2; ++i) sums[i] = d[place(i)];
  wgmma_hold(sums);
  uint64_t right = gathered_operand<kDepth>(shared);
  if (mistake == kMisaligned) right = wgmma_moved(right, kSlabRowBytes);
  if (mistake == kOutOfBounds) right = wgmma_moved(right, columns / 64 * kSlabBytes);
  if (mistake == kShortSlabs) right = gathered_operand<8>(shared);
  if (mistake == kWrongFlags) right ^= uint64_t{1} << 63;
  FS_UNROLL
  for (int batch = 0; batch < 2; ++batch) {
    if (mistake != kNoBegin) wgmma_begin();
    FS_UNROLL
    for (int step = batch * 2; step < batch * 2 + 2; ++step) {
      wgmma_gathered<Type, columns>(sums, rows[step],
                                    wgmma_moved(right, step * 16 * kSlabRowBytes));
    }
    wgmma_commit();
    if (batch == 1) wgmma_wait_but<1>();
  }
  // The first group has ended, the second may not have.
  if (mistake == kRegistersOverwritten) rows[3][2] ^= 1;
  if (mistake == kOverwritten) store_shared(slab_place(shared, 40 + threadIdx.x % 8, warp), 1u);
  if (mistake == kWaitForTooFew) wgmma_wait_but<1>();
  rows[0][0] = 0;
  if (mistake != kWaitForTooFew) wgmma_wait(sums);
  FS_UNROLL
  for (int i = 0; i < columns / 2; ++i) out[place(i)] = sums[i];
}

struct Input {
  std::vector<uint16_t> a;
  std::vector<uint4> b;
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
void run(Kernel kernel, int shared_bytes, unsigned, const Input& in, std::vector<float>& out) {
  float* const there = on_device(out);
  kernel<<<1, kThreads, shared_bytes>>>(on_device(in.a), on_device(in.b), on_device(in.d), there);
  check(cudaGetLastError());
  check(cudaMemcpy(out.data(), there, out.size() * sizeof(float), cudaMemcpyDeviceToHost));
}
#else
template <class Kernel>
void run(Kernel kernel, int shared_bytes, unsigned seed, const Input& in, std::vector<float>& out) {
  simt::launch(1, kThreads, shared_bytes, seed,
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

template <class Type, int columns, Mistake mistake = kNone>
bool run_case(int seeds, char** seed) {
  Input in;
  read(in.a, kRows * kDepth);
  read(in.b, kDepth * columns / 8);
  read(in.d, kRows * columns);
  for (int i = 0; i < seeds; ++i) {
    std::vector<float> out(kRows * columns);
    run(multiply<Type, columns, mistake>, kDepth * columns * 2, std::strtoul(seed[i], nullptr, 10),
        in, out);
    std::fwrite(out.data(), sizeof(float), out.size(), stdout);
  }
  return true;
}

template <class Type>
bool run_columns(int columns, int seeds, char** seed) {
  if (columns == 64) return run_case<Type, 64>(seeds, seed);
  if (columns == 128) return run_case<Type, 128>(seeds, seed);
  return columns == 256 && run_case<Type, 256>(seeds, seed);
}

#ifndef __CUDACC__
template <int mistake = 1>
bool run_mistake(const char* name, int seeds, char** seed) {
  if constexpr (mistake == kMistakes) {
    return false;
  } else {
    if (std::strcmp(name, kNames[mistake]) != 0) return run_mistake<mistake + 1>(name, seeds, seed);
    return run_case<BFloat16, 128, static_cast<Mistake>(mistake)>(seeds, seed);
  }
}
#else
bool run_mistake(const char*, int, char**) { return false; }  // a GPU may hang
#endif

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 1;
  const int columns = std::atoi(argv[2]), seeds = argc - 4;
  bool ran = false;
  if (std::strcmp(argv[3], kNames[kNone]) != 0)
    ran = run_mistake(argv[3], seeds, argv + 4);  // of bfloat16, 128 columns
  else if (std::strcmp(argv[1], "bfloat16") == 0)
    ran = run_columns<BFloat16>(columns, seeds, argv + 4);
  else
    ran = run_columns<Float16>(columns, seeds, argv + 4);
  if (!ran) std::fprintf(stderr, "no such case\n");
  return !ran;
}
