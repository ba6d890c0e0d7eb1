// SPDX-License-Identifier: Apache-2.0
// Runs one kernel of primitives.cuh for each seed: primitives_driver CASE SEED... < in > out, all
// uint32. Compiled with g++ it runs in the emulator, with nvcc -x cu on a GPU; both must give the
// same results.
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
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = chosen.cluster;
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = chosen.cluster;
  config.blockDim = chosen.threads;
  config.dynamicSmemBytes = chosen.shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = chosen.cluster > 1;
  const uint32_t* const given = device_in;
  check(cudaLaunchKernelEx(&config, chosen.kernel, given, device_out));
  check(cudaMemcpy(out.data(), device_out, out_bytes, cudaMemcpyDeviceToHost));
}
#else
void run(const Case& chosen, const std::vector<uint32_t>& in, std::vector<uint32_t>& out,
         unsigned seed) {
  simt::launch_clusters(chosen.cluster, chosen.cluster, chosen.threads, chosen.shared_bytes, seed,
                        [&] { chosen.kernel(in.data(), out.data()); });
}
#endif

}  // namespace

int main(int argc, char** argv) {
  std::vector<uint32_t> in;
  for (uint32_t number; std::fread(&number, sizeof number, 1, stdin) == 1;) in.push_back(number);
  for (const Case& one : kCases) {
    if (argc < 3 || std::strcmp(argv[1], one.name) != 0) continue;
    for (int i = 2; i < argc; ++i) {
      std::vector<uint32_t> out(one.outputs);
      run(one, in, out, std::strtoul(argv[i], nullptr, 10));
      std::fwrite(out.data(), sizeof(uint32_t), out.size(), stdout);
    }
    return 0;
  }
  std::fprintf(stderr, "no such case\n");
  return 1;
}
