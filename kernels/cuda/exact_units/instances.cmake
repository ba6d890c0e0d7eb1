# SPDX-License-Identifier: Apache-2.0
foreach(tokens 8 16 32 64)
  instantiate(linear_${tokens} linear.cuh "const Compiled* compiled_linear<${tokens}>()")
endforeach()
foreach(tokens 32 64 128)
  instantiate(sm_90a/wgmma_${tokens} wgmma.cuh "const WgmmaCompiled* compiled_wgmma<${tokens}>()")
endforeach()
