# SPDX-License-Identifier: Apache-2.0
foreach(operands Native Codes Rounded)
  set(linear "")
  foreach(tokens "0, 16" "16, 64") # more than, up to
    list(APPEND linear "const Compiled* compiled_linear<Operands::k${operands}, ${tokens}>()")
  endforeach()
  set(wgmma "")
  foreach(dtype Float16 BFloat16)
    list(APPEND wgmma "const WgmmaKernel* compiled_wgmma<${dtype}, Operands::k${operands}>()")
  endforeach()
  instantiate(linear_${operands} linear.cuh ${linear})
  instantiate(sm_90a/wgmma_${operands} wgmma.cuh ${wgmma})
endforeach()
