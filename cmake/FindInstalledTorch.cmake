# Finds the torch that the running Python would import, by asking it.
#
# find_package(Torch) is not used: it configures Caffe2's whole CMake package (CUDA and MKL probes,
# about ten times slower) for what four paths and a flag tell.
#
# In:  Python_EXECUTABLE
# Out: OPENSPYRE_TORCH_VERSION  e.g. "2.13.0+cpu"
#      imported target openspyre::torch  (headers, C++ ABI flag, libraries)

execute_process(
  # Autoload off: a half-built openspyre must not stop its own build.
  COMMAND
    ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python_EXECUTABLE} -c
    "import os, torch; print(';'.join([torch.__version__, os.path.dirname(torch.__file__), str(int(torch._C._GLIBCXX_USE_CXX11_ABI))]), end='')"
  OUTPUT_VARIABLE _torch_answer
  ERROR_VARIABLE _torch_error
  RESULT_VARIABLE _torch_result)
if(NOT _torch_result EQUAL 0)
  message(
    FATAL_ERROR
      "openspyre is built against the torch of the environment it will run in, and ${Python_EXECUTABLE} "
      "cannot import one.\nWay out: pip install torch==2.13.0, then pip install --no-build-isolation -e . "
      "(a build with isolation never sees your torch; see docs/building.md).\n${_torch_error}")
endif()
list(GET _torch_answer 0 OPENSPYRE_TORCH_VERSION)
list(GET _torch_answer 1 _torch_dir)
list(GET _torch_answer 2 _torch_abi)
if(OPENSPYRE_TORCH_VERSION VERSION_LESS 2.13 OR OPENSPYRE_TORCH_VERSION VERSION_GREATER_EQUAL 2.15)
  message(FATAL_ERROR "openspyre supports torch >=2.13,<2.15; ${Python_EXECUTABLE} has "
                      "${OPENSPYRE_TORCH_VERSION}.\nWay out: pip install torch==2.13.0")
endif()
message(STATUS "torch ${OPENSPYRE_TORCH_VERSION} in ${_torch_dir}")

add_library(openspyre_torch INTERFACE)
add_library(openspyre::torch ALIAS openspyre_torch)
target_include_directories(
  openspyre_torch SYSTEM INTERFACE ${_torch_dir}/include
                                   ${_torch_dir}/include/torch/csrc/api/include
                                   ${_torch_dir}/include/kineto)
# USE_KINETO opens the profiler's headers; libtorch hides its fmt symbols, hence header-only fmt.
target_compile_definitions(openspyre_torch INTERFACE _GLIBCXX_USE_CXX11_ABI=${_torch_abi}
                                                     USE_KINETO FMT_HEADER_ONLY=1)
# Only the libraries that are used are recorded as needed. torch is loaded before the extension, so
# the names resolve to the copies in memory; no RPATH ties the file to this machine.
target_link_options(openspyre_torch INTERFACE -Wl,--as-needed)
target_link_libraries(
  openspyre_torch
  INTERFACE ${_torch_dir}/lib/libc10.so ${_torch_dir}/lib/libtorch_cpu.so
            ${_torch_dir}/lib/libtorch.so ${_torch_dir}/lib/libtorch_python.so)
