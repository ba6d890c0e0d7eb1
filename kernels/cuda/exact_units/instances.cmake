# SPDX-License-Identifier: Apache-2.0
foreach(tokens 8 16 32 64)
  foreach(kind Dense 24)
    instantiate(linear_${tokens}_${kind} linear.cuh
                "const Compiled* compiled_linear<${tokens}, Kind::k${kind}>()")
  endforeach()
endforeach()
foreach(tokens 32 64 128 256)
  foreach(kind Dense 24)
    instantiate(sm_90a/wgmma_${tokens}_${kind} wgmma.cuh
                "const WgmmaCompiled* compiled_wgmma<${tokens}, Kind::k${kind}>()")
  endforeach()
endforeach()
