# SPDX-License-Identifier: Apache-2.0
# Adds the target _C_cuda where an nvcc is found that can build it. Where none is, AUTO builds
# without it and says so, ON is an error.
#
# Looked at in this order, the first that passes wins: CMAKE_CUDA_COMPILER or CUDACXX (then nothing
# else), CUDA_HOME, PATH, /usr/local/cuda, and the pip packages of the `toolkit` extra.
if(CMAKE_CUDA_COMPILER)
  set(candidates "${CMAKE_CUDA_COMPILER}")
elseif(DEFINED ENV{CUDACXX})
  set(candidates "$ENV{CUDACXX}")
else()
  get_filename_component(pip_toolkit "${TORCH_ROOT}/../nvidia/cu13" ABSOLUTE)
  set(candidates nvcc /usr/local/cuda/bin/nvcc "${pip_toolkit}/bin/nvcc")
  if(DEFINED ENV{CUDA_HOME})
    list(PREPEND candidates "$ENV{CUDA_HOME}/bin/nvcc")
  endif()
endif()

# The options of nvcc for architectures: machine code for each, by PTX of its own or, where ptx_of_* says
# so, of another.
function(set_arch_flags result)
  set(flags "")
  set(ptx_archs "")
  foreach(arch IN LISTS ARGN)
    if(arch MATCHES "^([0-9]+[af]?)(-real|-virtual)?$")
      set(number ${CMAKE_MATCH_1})
      set(kind "${CMAKE_MATCH_2}")
      set(ptx ${number})
      if(DEFINED ptx_of_${number})
        set(ptx ${ptx_of_${number}})
      endif()
      list(APPEND ptx_archs ${ptx})
      if(NOT kind STREQUAL "-virtual")
        list(APPEND code_of_${ptx} sm_${number})
      endif()
      if(NOT kind STREQUAL "-real")
        list(APPEND code_of_${ptx} compute_${ptx})
      endif()
    else()
      list(APPEND flags "-arch=${arch}") # native, all, all-major
    endif()
  endforeach()
  list(REMOVE_DUPLICATES ptx_archs)
  foreach(ptx IN LISTS ptx_archs)
    list(JOIN code_of_${ptx} "," code)
    list(APPEND flags "--generate-code=arch=compute_${ptx},code=[${code}]")
  endforeach()
  set(${result} "${flags}" PARENT_SCOPE)
endfunction()

set_arch_flags(arch_flags ${FLASHSPARSE_CUDA_ARCHS})
# An sm_86 runs the code of sm_80, and so does an sm_89 where there is no fp8, which it widens and rounds
# by instructions of its own.
set(plain_archs ${FLASHSPARSE_CUDA_ARCHS})
if("80-real" IN_LIST plain_archs)
  list(REMOVE_ITEM plain_archs 89-real)
endif()
# PTX takes longer to make than code: that of sm_90 is made once for it and for later GPUs. (By PTX of
# compute_100 the loops of sparse_24's int4 kernels have 1% fewer instructions on sm_100, and all that is
# beside them 10%.) Except for wgmma, which sm_90a has, and where sm_120 would spill registers.
set(ptx_of_120 100)
set_arch_flags(own_ptx_flags ${plain_archs})
set(ptx_of_100 90)
set(ptx_of_120 90)
list(TRANSFORM plain_archs REPLACE "^90a" "90")
set_arch_flags(plain_flags ${plain_archs})
list(TRANSFORM FLASHSPARSE_CUDA_ARCHS REPLACE "^90a" "90" OUTPUT_VARIABLE widening_archs)
set_arch_flags(widening_flags ${widening_archs})
# Those of GPUs whose mma multiplies fp8 have PTX of their own each.
set(fp8_flags "")
foreach(arch IN LISTS FLASHSPARSE_CUDA_ARCHS)
  if(arch MATCHES "^(89|120)(-|$)")
    list(APPEND fp8_flags
         "--generate-code=arch=compute_${CMAKE_MATCH_1},code=[sm_${CMAKE_MATCH_1}]")
  endif()
endforeach()

# An nvcc can be there and of no use: too old for an architecture or too old for this g++, or, from
# pip, without the packages that go with it. So each candidate compiles an empty kernel.
set(probe_flags -c -std=c++17 -o "${CMAKE_CURRENT_BINARY_DIR}/probe.o" ${arch_flags})
set(probe_source "${CMAKE_CURRENT_BINARY_DIR}/probe.cu")
file(WRITE "${probe_source}" "#include <cuda_runtime.h>\n__global__ void probe() {}\n")
set(nvcc "")
set(refusals "")
foreach(candidate IN LISTS candidates)
  find_program(path "${candidate}" NO_CACHE)
  if(path AND NOT nvcc)
    execute_process(COMMAND "${path}" ${probe_flags} "${probe_source}"
                    RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
    if(failed)
      string(STRIP "${output}" output)
      string(APPEND refusals " ${path} cannot compile for ${FLASHSPARSE_CUDA_ARCHS}:\n"
                              "  ${output}\n")
    else()
      set(nvcc "${path}")
    endif()
  endif()
  unset(path)
endforeach()

if(NOT nvcc)
  if(NOT refusals)
    string(REPLACE ";" ", " places "${candidates}")
    set(refusals " no nvcc was found (looked for: ${places}).\n")
  endif()
  file(STRINGS pyproject.toml pins REGEX "^  \"nvidia-.*==")
  string(REGEX REPLACE "[\" ,;]+" " " pins "${pins}")
  set(remedy "Install a CUDA toolkit (12.8 or newer for all architectures), or one from pip packages:"
             "\n  pip install${pins}\nor name a compiler in CUDACXX, or choose other architectures "
             "in FLASHSPARSE_CUDA_ARCHS. FLASHSPARSE_CUDA=OFF builds the CPU kernels only.")
  string(CONCAT remedy ${remedy})
  if(FLASHSPARSE_CUDA STREQUAL "ON")
    message(FATAL_ERROR "FLASHSPARSE_CUDA=ON, but${refusals}${remedy}")
  elseif(refusals MATCHES "cannot compile")
    message(WARNING "flashsparse: building without CUDA kernels.${refusals}${remedy}")
  else()
    message(STATUS "flashsparse: no nvcc found, building without CUDA kernels")
  endif()
  return()
endif()

# The pip packages have lib/ where nvcc looks for lib64/.
file(REAL_PATH "${nvcc}" nvcc)
get_filename_component(toolkit "${nvcc}/../.." ABSOLUTE)
if(EXISTS "${toolkit}/lib/libcudart_static.a" AND NOT EXISTS "${toolkit}/lib64")
  string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${toolkit}/lib")
endif()

set(CMAKE_CUDA_COMPILER "${nvcc}")
set(CMAKE_CUDA_ARCHITECTURES OFF) # arch_flags has them
set(CMAKE_CUDA_RUNTIME_LIBRARY Static) # nothing but libtorch is needed to load the object
enable_language(CUDA)
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)

# A format is found by its folders: kernels/cuda/<format>/ and bindings/<format>_cuda.cpp. Kernels
# that only Hopper can run are in a folder sm_90a, those of mma of fp8 in sm_89, and are compiled for
# nothing else, unless a build leaves those architectures out: then they are there, and empty.
file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/bindings/*_cuda.cpp
     kernels/cuda/*/*.cpp)
list(REMOVE_ITEM cuda_sources ${plan_sources})
file(GLOB kernel_sources CONFIGURE_DEPENDS kernels/cuda/*/*.cu)
file(GLOB hopper_sources CONFIGURE_DEPENDS kernels/cuda/*/sm_90a/*.cu)
file(GLOB fp8_sources CONFIGURE_DEPENDS kernels/cuda/*/sm_89/*.cu)

# Kernel templates take long to compile, so they are instantiated in several source files, written
# here: kernels/cuda/<format>/instances.cmake calls instantiate(name header declaration...) for each.
# Few, as a file takes three seconds beside its kernels. One whose text stays is not written again.
# `name` may begin with a folder, as above; `header` is one of the format.
function(instantiate name header)
  string(TOLOWER "kernels/cuda/${format}/${name}.cu" source)
  set(source "${CMAKE_CURRENT_BINARY_DIR}/${source}")
  list(TRANSFORM ARGN PREPEND "template " OUTPUT_VARIABLE instantiations)
  list(JOIN instantiations ";\n" instantiations)
  configure_file(cmake/instance.cu.in "${source}" @ONLY)
  set(instances ${instances} "${source}" PARENT_SCOPE)
endfunction()
# Fp8, Int8, ...: rows of FS_QUANTIZED_TYPES.
set(types_header kernels/formats/value_type.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${types_header})
file(READ ${types_header} text)
string(REGEX MATCHALL "\n  X\\([A-Za-z0-9]+" quantized_types "${text}")
list(TRANSFORM quantized_types REPLACE "\n  X\\(" "")
if(NOT quantized_types)
  message(FATAL_ERROR "${types_header} has no rows X(name, ...) of quantized value types")
endif()
set(instances "")
file(GLOB instance_lists CONFIGURE_DEPENDS kernels/cuda/*/instances.cmake)
foreach(instance_list IN LISTS instance_lists)
  cmake_path(GET instance_list PARENT_PATH format)
  cmake_path(GET format FILENAME format)
  include("${instance_list}")
endforeach()
foreach(source IN LISTS instances)
  if(source MATCHES "/sm_90a/")
    list(APPEND hopper_sources "${source}")
  elseif(source MATCHES "/sm_89/")
    list(APPEND fp8_sources "${source}")
  else()
    list(APPEND kernel_sources "${source}")
  endif()
endforeach()

add_library(_C_cuda MODULE ${cuda_sources} ${kernel_sources} ${hopper_sources} ${fp8_sources})
target_include_directories(_C_cuda PRIVATE kernels)
target_include_directories(_C_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_compile_definitions(_C_cuda PRIVATE USE_CUDA) # the stable ABI's CUDA part
target_compile_options(_C_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--threads=2 -Xptxas=--warn-on-spills,-Werror>
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
set(hopper_flags ${arch_flags})
list(FILTER hopper_flags INCLUDE REGEX "sm_90a")
if(NOT hopper_flags)
  set(hopper_flags ${arch_flags})
endif()
if(NOT fp8_flags)
  set(fp8_flags ${arch_flags})
endif()
set(widening_sources ${kernel_sources})
list(FILTER widening_sources INCLUDE REGEX "/[^/]*(fp8|quantise_x|unpack)[^/]*$")
set_source_files_properties(${kernel_sources} PROPERTIES COMPILE_OPTIONS "${plain_flags}")
set_source_files_properties(${widening_sources} PROPERTIES COMPILE_OPTIONS "${widening_flags}")
set_source_files_properties(
  kernels/cuda/tiled_csl/linear.cu # kernels for Hopper beside the others
  kernels/cuda/tiled_csl/pack.cu kernels/cuda/nm_vector/validate.cu
  PROPERTIES COMPILE_OPTIONS "${own_ptx_flags}")
set_source_files_properties(${hopper_sources} PROPERTIES COMPILE_OPTIONS "${hopper_flags}")
set_source_files_properties(${fp8_sources} PROPERTIES COMPILE_OPTIONS "${fp8_flags}")
target_link_options(_C_cuda PRIVATE -Wl,--exclude-libs,ALL) # keeps our cudart to ourselves
target_link_libraries(_C_cuda PRIVATE plans torch_stable)
list(APPEND objects _C_cuda)
