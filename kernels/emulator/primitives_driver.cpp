// SPDX-License-Identifier: Apache-2.0
// Runs one kernel of primitives.cuh: primitives_driver CASE [SEED] < in > out, both uint32. Compiled
// with g++ it runs in the emulator, with nvcc -x cu on a GPU, and both must give the same.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "emulator/primitives.cuh"

namespace {

using flashsparse::primitives::Case;
using flashsparse::primitives::kCases;

#ifdef __CUDACC__
void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  std::exit(1);
}

void run(const Case& chosen, const std::vector<uint32_t>& in, std::vector<uint32_t>& out,
         unsigned) {
  uint32_t *device_in, *device_out;
  const size_t in_bytes = in.size() * sizeof(uint32_t), out_bytes = out.size() * sizeof(uint32_t);
  check(cudaMalloc(&device_in, in_bytes));
  check(cudaMalloc(&device_out, out_bytes));
  check(cudaMemcpy(device_in, in.data(), in_bytes, cudaMemcpyHostToDevice));
  chosen.kernel<<<1, chosen.threads, chosen.shared_bytes>>>(device_in, device_out);
  check(cudaGetLastError());
  check(cudaMemcpy(out.data(), device_out, out_bytes, cudaMemcpyDeviceToHost));
}
#else
void run(const Case& chosen, const std::vector<uint32_t>& in, std::vector<uint32_t>& out,
         unsigned seed) {
  simt::launch(1, chosen.threads, chosen.shared_bytes, seed,
               [&] { chosen.kernel(in.data(), out.data()); });
}
#endif

}  // namespace

int main(int argc, char** argv) {
  const unsigned seed = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 0;
  std::vector<uint32_t> in;
  for (uint32_t number; std::fread(&number, sizeof number, 1, stdin) == 1;) in.push_back(number);
  for (const Case& one : kCases) {
    if (argc < 2 || std::strcmp(argv[1], one.name) != 0) continue;
    std::vector<uint32_t> out(one.outputs);
    run(one, in, out, seed);
    std::fwrite(out.data(), sizeof(uint32_t), out.size(), stdout);
    return 0;
  }
  std::fprintf(stderr, "no such case\n");
  return 1;
}
