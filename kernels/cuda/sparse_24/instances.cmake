# SPDX-License-Identifier: Apache-2.0
instantiate(linear_native linear.cuh "const Compiled* compiled_linear<NativeValues>()")
instantiate(sm_90a/wgmma_native wgmma.cuh "const WgmmaCompiled* compiled_wgmma<NativeValues>()")
foreach(type IN LISTS quantized_types)
  set(linear "")
  set(wgmma "")
  foreach(group 0 32 64 128) # columns that share a scale; 0: scales of rows
    list(APPEND linear "const Compiled* compiled_linear<${type}Values<${group}>>()")
    list(APPEND wgmma "const WgmmaCompiled* compiled_wgmma<${type}Values<${group}>>()")
  endforeach()
  instantiate(linear_${type} linear.cuh ${linear})
  instantiate(sm_90a/wgmma_${type} wgmma.cuh ${wgmma})
endforeach()
# W8A8
instantiate(linear_int8_x linear_codes.cuh "const Compiled* compiled_codes_linear<Int8Codes>()")
instantiate(sm_89/linear_fp8_x linear_codes.cuh
            "const Compiled* compiled_codes_linear<Fp8Codes>()")
foreach(type Fp8 Int8)
  instantiate(sm_90a/wgmma_${type}_x wgmma.cuh
              "const WgmmaCompiled* compiled_codes_wgmma<${type}Codes>()")
endforeach()
# Experts of mixtures: those of experts_are_compiled() (experts_plan.h)
set(experts_of_Native "NativeValues")
set(experts_of_Fp8 "Fp8Values<0>" "Fp8Values<128>")
set(experts_of_Int8 "Int8Values<0>")
set(experts_of_Int4 "Int4Values<32>" "Int4Values<128>")
foreach(type Native Fp8 Int8 Int4)
  list(TRANSFORM experts_of_${type} REPLACE "(.+)"
       "const ExpertsCompiled* compiled_experts<\\1>()" OUTPUT_VARIABLE few)
  list(TRANSFORM experts_of_${type} REPLACE "(.+)"
       "const ExpertsWgmmaCompiled* compiled_experts_wgmma<\\1>()" OUTPUT_VARIABLE many)
  instantiate(experts_${type} experts.cuh ${few})
  instantiate(sm_90a/experts_wgmma_${type} experts_wgmma.cuh ${many})
endforeach()
