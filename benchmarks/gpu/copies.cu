// SPDX-License-Identifier: Apache-2.0
// How fast do asynchronous copies read memory, by the size of their pieces and the layout of these
// in shared memory? The layouts of the decode and the flat GEMM kernel follow from the answer.
//
//   nvcc -std=c++17 -O3 -arch=sm_90a -Ikernels benchmarks/gpu/copies.cu -o copies
//   ./copies FOLDER     writes copies.csv there
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "common/device.cuh"
#include "common/memory.cuh"

namespace {

using namespace flashsparse;

constexpr int kWarps = 4, kStages = 4, kBlocks = 2, kTile = 4096;
constexpr size_t kBytes = size_t{2112} << 20;  // 132 * 2^24, far more than any cache

void require(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

// Every warp takes tiles of kTile bytes: pieces of kPiece bytes, of rows that lie `pitch` apart, to
// rows of shared memory that lie kTo apart. With an order of pages, of two tiles each, tiles are
// read from scattered places.
template <int kPiece, int kTo>
__global__ void __launch_bounds__(kWarps * 32, kBlocks)
    copy(const unsigned char* from, int64_t pitch, const int* pages, uint32_t* out) {
  constexpr int kRows = kTile / kPiece, kChunks = kPiece / 16, kAtOnce = 32 / kChunks;
  FS_DYNAMIC_SHARED(shared);
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / kChunks;
  const int chunk = threadIdx.x % kChunks;
  const uint32_t ring = shared_address(shared) + warp * kStages * kRows * kTo;
  const int64_t in_a_row = pitch / kPiece, tiles = kBytes / kTile / gridDim.x;
  int64_t tile = blockIdx.x * tiles + warp, left = tiles / kWarps;
  const auto page_of = [&](int64_t tile) {  // loaded before it is needed
    return pages && tile < kBytes / kTile ? load_readonly(pages + tile / 2) : tile / 2;
  };
  int64_t page = page_of(tile);
  const auto start = [&](int stage, bool there) {
    if (there) {
      const int64_t number = page * 2 + tile % 2;
      const unsigned char* place =
          from + number / in_a_row * kRows * pitch + number % in_a_row * kPiece;
      FS_UNROLL
      for (int r = 0; r < kRows; r += kAtOnce) {
        copy_async<16>(ring + (stage * kRows + row + r) * kTo + chunk * 16,
                       place + (row + r) * pitch + chunk * 16, true);
      }
      tile += kWarps;
      page = page_of(tile);
    }
    copy_async_commit();
  };
  for (int i = 0; i < kStages - 1; ++i) start(i, true);
  uint32_t sum = 0;
  for (int stage = 0; left > 0; --left, stage = (stage + 1) % kStages) {
    copy_async_wait<kStages - 2>();
    __syncwarp();
    start((stage + kStages - 1) % kStages, left >= kStages);
    sum ^= load_shared<uint32_t>(ring + stage * kRows * kTo + threadIdx.x % 32 * 4);
  }
  if (sum == 0x12345678) *out = sum;  // keeps the loads from being optimised away
}

// Gigabytes a second, the median of 15.
template <int kPiece, int kTo>
double speed(const unsigned char* from, int64_t pitch, uint32_t* out, int multiprocessors,
             const int* pages = nullptr) {
  const int bytes = kWarps * kStages * kTile / kPiece * kTo;
  require(
      cudaFuncSetAttribute(copy<kPiece, kTo>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  cudaEvent_t begin, end;
  require(cudaEventCreate(&begin));
  require(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 18; ++i) {
    require(cudaEventRecord(begin));
    copy<kPiece, kTo><<<multiprocessors * kBlocks, kWarps * 32, bytes>>>(from, pitch, pages, out);
    require(cudaEventRecord(end));
    require(cudaEventSynchronize(end));
    float ms;
    require(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 3) times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + 7, times.end());
  return kBytes / 1e6 / times[7];
}

}  // namespace

int main(int argc, char** argv) {
  unsigned char* from;
  uint32_t* out;
  require(cudaMalloc(&from, kBytes));
  require(cudaMalloc(&out, sizeof *out));
  std::vector<uint32_t> noise(kBytes / sizeof(uint32_t));
  uint32_t state = 1;
  for (uint32_t& word : noise) word = state = state * 1664525 + 1013904223;
  require(cudaMemcpy(from, noise.data(), kBytes, cudaMemcpyHostToDevice));
  cudaDeviceProp gpu;
  require(cudaGetDeviceProperties(&gpu, 0));
  const int count = gpu.multiProcessorCount;

  int* pages;
  std::vector<int> order(kBytes / kTile / 2);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(1));
  require(cudaMalloc(&pages, order.size() * sizeof(int)));
  require(cudaMemcpy(pages, order.data(), order.size() * sizeof(int), cudaMemcpyHostToDevice));

  struct Row {
    const char* what;
    double gb_s;
  };
  const Row rows[] = {
      {"256 bytes to rows of 256", speed<256, 256>(from, 256, out, count)},
      {"256 bytes to rows of 256, from 8 KB here and there",
       speed<256, 256>(from, 256, out, count, pages)},
      {"256 bytes to rows of 272", speed<256, 272>(from, 256, out, count)},
      {"128 bytes of rows 8 KB apart to rows of 128", speed<128, 128>(from, 8192, out, count)},
      {"128 bytes of rows 8 KB apart to rows of 144", speed<128, 144>(from, 8192, out, count)},
      {"64 bytes of rows 8 KB apart to rows of 64", speed<64, 64>(from, 8192, out, count)},
  };
  char date[32] = "";
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S+00:00", std::gmtime(&now));
  std::string csv = std::string("# gpu: \"") + gpu.name + "\"\n# date: \"" + date + "\"\n";
  csv += "pieces,gb_s\n";
  for (const Row& row : rows) {
    char line[200];
    std::printf("%-52s %5.0f GB/s\n", row.what, row.gb_s);
    std::snprintf(line, sizeof line, "\"%s\",%.0f\n", row.what, row.gb_s);
    csv += line;
  }
  std::printf("%s, %s\n", gpu.name, date);
  if (argc >= 2) std::ofstream(std::string(argv[1]) + "/copies.csv") << csv;
}
