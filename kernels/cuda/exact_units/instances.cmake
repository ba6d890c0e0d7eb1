# SPDX-License-Identifier: Apache-2.0
foreach(tokens 8 16 32 64)
  instantiate(linear_${tokens} linear.cuh "const Compiled* compiled_linear<${tokens}>()")
endforeach()
