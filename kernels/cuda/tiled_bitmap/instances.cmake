# SPDX-License-Identifier: Apache-2.0
foreach(operands Native Codes Rounded)
  foreach(tokens "0, 16" "16, 64") # more than, up to
    string(REPLACE ", " "_" range "${tokens}")
    instantiate(linear_${operands}_${range} linear.cuh
                "const Compiled* compiled_linear<Operands::k${operands}, ${tokens}>()")
  endforeach()
endforeach()
foreach(dtype Float16 BFloat16)
  foreach(operands Native Codes Rounded)
    instantiate(sm_90a/wgmma_${operands}_${dtype} wgmma.cuh
                "const WgmmaKernel* compiled_wgmma<${dtype}, Operands::k${operands}>()")
  endforeach()
endforeach()
