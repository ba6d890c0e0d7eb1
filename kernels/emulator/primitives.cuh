// SPDX-License-Identifier: Apache-2.0
// A small kernel for each primitive of kernels/common and for each CUDA function that the emulator
// implements, with inputs and outputs laid out for a test. All have one block and the same
// signature; unless stated otherwise, thread t reads `count` numbers from in[t * count] on and
// writes them from out[t * count] on.
#pragma once
#include <cstring>

#include "common/device.cuh"
#include "common/float32.cuh"
#include "common/integer.cuh"
#include "common/memory.cuh"
#include "common/mma.cuh"
#include "common/mma_sparse.cuh"
#include "common/warp.cuh"
#include "common/widen.cuh"
#include "emulator/copy_primitives.cuh"

namespace flashsparse::primitives {

__device__ __forceinline__ float float_of(uint32_t bits) { return __uint_as_float(bits); }
__device__ __forceinline__ uint32_t bits_of(float value) { return __float_as_uint(value); }

// in: a[4], b0, b1, d[4] of a lane; out: d[4].
template <class Dtype>
__global__ void mma(const uint32_t* in, uint32_t* out) {
  const uint32_t* const mine = in + threadIdx.x * 10;
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  float d[4];
  FS_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = float_of(mine[6 + i]);
  mma_m16n8k16<Dtype>(d, a, mine[4], mine[5]);
  FS_UNROLL
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = bits_of(d[i]);
}

// The same of bytes.
__global__ void mma_bytes(const uint32_t* in, uint32_t* out) {
  const uint32_t* const mine = in + threadIdx.x * 10;
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  uint32_t d[4] = {mine[6], mine[7], mine[8], mine[9]};
  mma_m16n8k32(d, a, mine[4], mine[5]);
  FS_UNROLL
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}

// in: a[4], b[4], metadata, d[4] of a lane; out: d[4].
template <class Dtype, int half>
__global__ void mma_sparse(const uint32_t* in, uint32_t* out) {
  const uint32_t* const mine = in + threadIdx.x * 13;
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  const uint32_t b[4] = {mine[4], mine[5], mine[6], mine[7]};
  float d[4];
  FS_UNROLL
  for (int i = 0; i < 4; ++i) d[i] = float_of(mine[9 + i]);
  mma_sparse_m16n8k32<Dtype, half>(d, a, b, mine[8]);
  FS_UNROLL
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = bits_of(d[i]);
}

// The same for 8-bit values, accumulated in float (e4m3) or int32_t (int8).
__device__ __forceinline__ void multiply_codes(float (&d)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[4], uint32_t metadata) {
  mma_sparse_fp8(d, a, b, metadata);
}
__device__ __forceinline__ void multiply_codes(int32_t (&d)[4], const uint32_t (&a)[4],
                                               const uint32_t (&b)[4], uint32_t metadata) {
  mma_sparse_int8(d, a, b, metadata);
}
template <class Sum>
__global__ void mma_sparse_codes(const uint32_t* in, uint32_t* out) {
  const uint32_t* const mine = in + threadIdx.x * 13;
  const uint32_t a[4] = {mine[0], mine[1], mine[2], mine[3]};
  const uint32_t b[4] = {mine[4], mine[5], mine[6], mine[7]};
  Sum d[4];
  std::memcpy(d, mine + 9, sizeof d);
  multiply_codes(d, a, b, mine[8]);
  std::memcpy(out + threadIdx.x * 4, d, sizeof d);
}

// in: 256 words of shared memory, then the 32 addresses; out: 4 registers.
template <bool transposed>
__global__ void ldmatrix(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t base = shared_address(shared);
  for (int i = threadIdx.x; i < 256; i += 32) store_shared(base + 4 * i, in[i]);
  __syncwarp();
  const uint32_t address = base + in[256 + threadIdx.x];
  uint32_t r[4];
  ldmatrix_x4<transposed>(r, address);
  FS_UNROLL
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = r[i];
}

// in: 4 registers; out: 128 words of shared memory, lane i's column at 16 * (31 - i).
__global__ void store_transposed(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t base = shared_address(shared);
  const uint32_t* const mine = in + threadIdx.x * 4;
  store_transposed_x4(base + 16 * (31 - threadIdx.x), {mine[0], mine[1], mine[2], mine[3]});
  __syncwarp();
  for (int i = threadIdx.x; i < 128; i += 32) out[i] = load_shared<uint32_t>(base + 4 * i);
}

// in: one register of an 8x8 matrix; out: that of its transpose.
__global__ void transpose(const uint32_t* in, uint32_t* out) {
  out[threadIdx.x] = transpose_8x8(in[threadIdx.x]);
}

// in: one value; out: the result of each shuffle, in the order below. 64 threads.
__global__ void shuffles(const uint32_t* in, uint32_t* out) {
  const uint32_t all = ~0u, value = in[threadIdx.x], lane = threadIdx.x % 32;
  uint32_t* const mine = out + threadIdx.x * 9;
  mine[0] = __shfl_sync(all, value, 5);
  mine[1] = __shfl_sync(all, value, 37, 8);
  mine[2] = __shfl_xor_sync(all, value, 21);
  mine[3] = __shfl_xor_sync(all, value, 12, 8);
  mine[4] = __shfl_up_sync(all, value, 3);
  mine[5] = __shfl_up_sync(all, value, 3, 16);
  mine[6] = __shfl_down_sync(all, value, 7);
  mine[7] = __shfl_down_sync(all, value, 7, 16);
  // Two halves of a warp, each with its own mask.
  if (lane % 2 == 0)
    mine[8] = __shfl_xor_sync(0x55555555u, value, 2);
  else
    mine[8] = bits_of(__shfl_sync(0xaaaaaaaau, float_of(value), 31));
}

// in: one value, a predicate where it is odd; out: ballot, any, all, ballot of lanes 8 to 15 alone,
// ballot of the others.
__global__ void votes(const uint32_t* in, uint32_t* out) {
  const uint32_t all = ~0u, some = 0xff00u;
  const int predicate = in[threadIdx.x] & 1;
  uint32_t* const mine = out + threadIdx.x * 5;
  mine[0] = __ballot_sync(all, predicate);
  mine[1] = __any_sync(all, predicate);
  mine[2] = __all_sync(all, predicate);
  mine[3] = mine[4] = 0;
  if (some >> threadIdx.x % 32 & 1)
    mine[3] = __ballot_sync(some, predicate);
  else
    mine[4] = __ballot_sync(~some, predicate);
}

__global__ void bits(const uint32_t* in, uint32_t* out) {
  const uint32_t value = in[threadIdx.x];
  uint32_t* const mine = out + threadIdx.x * 4;
  mine[0] = __popc(value);
  mine[1] = __clz(value);
  mine[2] = __ffs(value);
  mine[3] = __brev(value);
}

inline constexpr int kItems = 1 << 16;  // of the next three kernels, whose block loops

// in: a, b, c; out: the result of each function.
__global__ void integers(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < kItems; i += blockDim.x) {
    const uint32_t a = in[i * 3], b = in[i * 3 + 1], c = in[i * 3 + 2];
    uint32_t* const to = out + i * 3;
    to[0] = dp2a_lo(a, b, c);
    to[1] = prmt(a, b, c);
    to[2] = dp2a_hi(a, b, c);
  }
}

// in: a float; out: it as fp16 and as bf16; its low half, as fp16 and as bf16, as floats; with the
// next float, both as fp16 and as bf16.
__global__ void conversions(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < kItems; i += blockDim.x) {
    const uint32_t value = in[i];
    const uint32_t next = in[(i + 1) % kItems];
    uint32_t* const to = out + i * 6;
    to[0] = from_float<Float16>(float_of(value));
    to[1] = from_float<BFloat16>(float_of(value));
    to[2] = bits_of(to_float<Float16>(static_cast<uint16_t>(value)));
    to[3] = bits_of(to_float<BFloat16>(static_cast<uint16_t>(value)));
    to[4] = from_floats<Float16>(float_of(value), float_of(next));
    to[5] = from_floats<BFloat16>(float_of(value), float_of(next));
  }
}

// in: a word of quantized values; out: two words for each 8-bit type, then four for the 4-bit type,
// and two for bytes value + 128.
template <class Dtype>
__global__ void widened(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < kItems; i += blockDim.x) {
    uint32_t* const mine = out + i * 10;
    uint32_t a[4];
    widen_fp8<Dtype>(in[i], mine[0], mine[1]);
    widen_int8<Dtype>(in[i], mine[2], mine[3]);
    widen_int4<Dtype>(in[i], a);
    FS_UNROLL
    for (int e = 0; e < 4; ++e) mine[4 + e] = a[e];
    widen_bytes<Dtype>(in[i], mine[8], mine[9]);
  }
}

// in: a float; out: approximations of 2 to its power and of its inverse.
__global__ void approximations(const uint32_t* in, uint32_t* out) {
  for (int i = threadIdx.x; i < kItems; i += blockDim.x) {
    out[i * 2] = bits_of(exp2_approx(float_of(in[i])));
    out[i * 2 + 1] = bits_of(reciprocal_approx(float_of(in[i])));
  }
}

// Two halves of a block of 128 threads, each with its own barrier, reverse their values several
// times: out[t] is in[t] of the reversed half.
__global__ void named_barriers(const uint32_t* in, uint32_t* out) {
  FS_SHARED(uint32_t, turned, 128);
  const int half = threadIdx.x / 64, place = threadIdx.x % 64;
  uint32_t value = in[threadIdx.x];
  for (int times = 0; times < 3 + 2 * half; ++times) {
    turned[half * 64 + 63 - place] = value;
    sync_threads_of(1 + half, 64);
    value = turned[half * 64 + place];
    sync_threads_of(1 + half, 64);
  }
  out[threadIdx.x] = value;
}

// in: 4 words; out: these 4, copied in pieces of 16, 8 and 4 bytes, 12 words. Every third thread
// gets zeros instead of its last piece of each size.
__global__ void async_copies(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t mine = shared_address(shared) + threadIdx.x * 48;
  const uint32_t* const words = in + threadIdx.x * 4;
  const bool valid = threadIdx.x % 3 != 0;
  copy_async<16>(mine, words, valid);
  copy_async_commit();
  FS_UNROLL
  for (int i = 0; i < 2; ++i) copy_async<8>(mine + 16 + 8 * i, words + 2 * i, valid || i < 1);
  copy_async_commit();
  FS_UNROLL
  for (int i = 0; i < 4; ++i) copy_async<4>(mine + 32 + 4 * i, words + i, valid || i < 3);
  copy_async_commit();
  copy_async_wait<2>();
  uint4 piece = load_shared<uint4>(mine);
  store_global(reinterpret_cast<uint4*>(out + threadIdx.x * 12), piece);
  copy_async_wait<0>();
  __syncthreads();
  piece = load_shared<uint4>(mine + 16);
  store_global(reinterpret_cast<uint4*>(out + threadIdx.x * 12 + 4), piece);
  piece = load_shared<uint4>(mine + 32);
  store_global(reinterpret_cast<uint4*>(out + threadIdx.x * 12 + 8), piece);
}

// in: 4 words; out: these through every load and store, 22 words.
__global__ void loads(const uint32_t* in, uint32_t* out) {
  FS_DYNAMIC_SHARED(shared);
  const uint32_t mine = shared_address(shared) + threadIdx.x * 16;
  const uint32_t* const words = in + threadIdx.x * 4;
  uint32_t* const to = out + threadIdx.x * 22;
  store_shared(mine, load_streaming(reinterpret_cast<const uint4*>(words)));
  const uint4 four = load_shared<uint4>(mine);
  to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  store_shared(mine, load_streaming(reinterpret_cast<const uint2*>(words)));
  const uint2 two = load_shared<uint2>(mine);
  to[4] = two.x, to[5] = two.y;
  store_shared(mine, load_streaming(words));
  to[6] = load_shared<uint32_t>(mine);
  store_shared(mine, load_readonly(reinterpret_cast<const uint16_t*>(words)));
  store_shared_same(mine + 2, load_readonly(reinterpret_cast<const uint16_t*>(words) + 1));
  to[7] = load_shared<uint16_t>(mine);
  to[8] = load_shared<uint16_t>(mine + 2);
  to[9] = load_readonly(words);
  const uint2 readonly = load_readonly(reinterpret_cast<const uint2*>(words));
  to[10] = readonly.x, to[11] = readonly.y;
  to[12] = load_readonly(reinterpret_cast<const uint4*>(words)).w;
  store_shared(mine, load_l2(reinterpret_cast<const float4*>(words)));
  const float4 floats = load_shared<float4>(mine);
  to[13] = bits_of(floats.x), to[14] = bits_of(floats.y);
  to[15] = bits_of(floats.z), to[16] = bits_of(floats.w);
  store_shared(mine + 4, load_l2(reinterpret_cast<const float*>(words)));
  to[17] = bits_of(load_shared<float>(mine + 4));
  store_shared(mine + 8, make_float2(floats.x, floats.y));
  const float2 pair = load_shared<float2>(mine + 8);
  to[18] = bits_of(pair.x), to[19] = bits_of(pair.y);
  store_global(to + 20, words[3]);
  store_shared(mine, words[0]);
  store_shared(mine + 1, static_cast<uint8_t>(words[1]));
  to[21] = load_shared<uint8_t>(mine + 1) | load_shared<uint8_t>(mine + 2) << 8;
}

// in: one value; out (of the block): sum as int, sum as unsigned, or, maximum, sum of the lowest
// byte as float; the same in shared memory; then for each thread the sum before its addition.
__global__ void atomics(const uint32_t* in, uint32_t* out) {
  FS_SHARED(uint32_t, shared, 5);
  const uint32_t value = in[threadIdx.x];
  if (threadIdx.x < 5) shared[threadIdx.x] = out[threadIdx.x] = 0;
  __syncthreads();
  for (uint32_t* const place : {out, &shared[0]}) {
    atomicAdd(reinterpret_cast<int*>(place), static_cast<int>(value));
    const uint32_t before = atomicAdd(place + 1, value);
    if (place == out) out[10 + threadIdx.x] = before;
    atomicOr(place + 2, value);
    atomicMax(place + 3, value);
    atomicAdd(reinterpret_cast<float*>(place + 4), static_cast<float>(value & 0xff));
  }
  __syncthreads();
  if (threadIdx.x < 5) out[5 + threadIdx.x] = shared[threadIdx.x];
}

struct Case {
  const char* name;
  void (*kernel)(const uint32_t* in, uint32_t* out);
  int threads, outputs, shared_bytes;
  int cluster = 1;  // blocks
};

constexpr Case kCases[] = {
    {"mma_float16", mma<Float16>, 32, 32 * 4, 0},
    {"mma_bfloat16", mma<BFloat16>, 32, 32 * 4, 0},
    {"mma_bytes", mma_bytes, 32, 32 * 4, 0},
    {"mma_sparse_float16_0", mma_sparse<Float16, 0>, 32, 32 * 4, 0},
    {"mma_sparse_float16_1", mma_sparse<Float16, 1>, 32, 32 * 4, 0},
    {"mma_sparse_bfloat16_0", mma_sparse<BFloat16, 0>, 32, 32 * 4, 0},
    {"mma_sparse_bfloat16_1", mma_sparse<BFloat16, 1>, 32, 32 * 4, 0},
    {"mma_sparse_fp8", mma_sparse_codes<float>, 32, 32 * 4, 0},
    {"mma_sparse_int8", mma_sparse_codes<int32_t>, 32, 32 * 4, 0},
    {"mbarriers", mbarriers, 64, kTurns * 32 * 4, 512 + 2 * kMbarrierBytes},
    {"runs", runs, 64, kTurns * 32 * 4, 512 + 2 * kMbarrierBytes},
    {"clusters", clusters, 32, 2 * 2 * 32 * 4, 1024 + 2 * kMbarrierBytes, 2},
    {"ldmatrix_x4", ldmatrix<false>, 32, 32 * 4, 1024},
    {"ldmatrix_x4_transposed", ldmatrix<true>, 32, 32 * 4, 1024},
    {"store_transposed_x4", store_transposed, 32, 32 * 4, 512},
    {"transpose", transpose, 32, 32, 0},
    {"shuffles", shuffles, 64, 64 * 9, 0},
    {"votes", votes, 64, 64 * 5, 0},
    {"bits", bits, 64, 64 * 4, 0},
    {"integers", integers, 64, kItems * 3, 0},
    {"conversions", conversions, 64, kItems * 6, 0},
    {"widened_float16", widened<Float16>, 64, kItems * 10, 0},
    {"widened_bfloat16", widened<BFloat16>, 64, kItems * 10, 0},
    {"approximations", approximations, 64, kItems * 2, 0},
    {"named_barriers", named_barriers, 128, 128, 0},
    {"async_copies", async_copies, 64, 64 * 12, 64 * 48},
    {"loads", loads, 64, 64 * 22, 64 * 16},
    {"atomics", atomics, 64, 10 + 64, 0},
};

}  // namespace flashsparse::primitives
