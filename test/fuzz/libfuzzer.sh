#!/usr/bin/env bash
# Builds pp-fuzz by clang with libFuzzer, ASan and UBSan in build-fuzz, and has libFuzzer draw inputs of one kind.
#
# usage: libfuzzer.sh BUILD FOLDER KIND [OPTION..]     from the root, after a build there and test/run/fuzz_inputs.py
#   BUILD has libpp-runtime.a of g++: clang does not know all that its kernels are written with. FOLDER is that of
#   fuzz_inputs.py, and has the seeds of KIND; options are libFuzzer's (-max_total_time=60).
# Needs clang-19, libclang-rt-19-dev, libomp-19-dev. The first build takes some 20 minutes on two cores.
set -euo pipefail
build=$1 folder=$2 kind=$3 fuzz=build-fuzz
shift 3
export ASAN_OPTIONS=detect_leaks=0:allow_user_poisoning=0:detect_container_overflow=0
export CCC_OVERRIDE_OPTIONS='# x-Werror' # warnings that g++ does not have
sanitizers='-fsanitize=address,undefined -fno-sanitize=vptr'
[ -f $fuzz/build.ninja ] || cmake -G Ninja -B $fuzz -DCMAKE_C_COMPILER=clang-19 -DCMAKE_CXX_COMPILER=clang++-19 \
  -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG='-O1 -g1' -DPP_CUDA=OFF -DPP_MPI=OFF \
  -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link $sanitizers -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
ninja -C $fuzz -j "${JOBS:-$(nproc)}" pp-frontend pp-lowering pp-report pp-fuzz-objects pp-trainer-objects \
  test/CMakeFiles/pp-fuzz.dir/fuzz/InputFiles.cpp.o
cp "$build/lib/libpp-runtime.a" $fuzz/kernels.a
ar d $fuzz/kernels.a Main.cpp.o
find $fuzz/test/CMakeFiles/pp-fuzz{-objects,}.dir $fuzz/runtime/CMakeFiles/pp-trainer-objects.dir -name '*.o' \
  >$fuzz/objects.txt
# shellcheck disable=SC2086
clang++-19 $sanitizers -fuse-ld=lld -o $fuzz/pp-fuzz @$fuzz/objects.txt $fuzz/lib/libpp-{frontend,lowering,report}.a \
  $fuzz/lib/libpp-{passes,analysis,dialect}.a $fuzz/kernels.a -Wl,-u,LLVMFuzzerRunDriver \
  "$(clang++-19 -print-file-name=libclang_rt.fuzzer_no_main-x86_64.a)" -L/usr/lib/llvm-19/lib -lMLIR -lLLVM \
  -Wl,-rpath,/usr/lib/llvm-19/lib -ldnnl -lopenblas -lmpi -lgomp -pthread
mkdir -p "$folder/$kind" "$folder/found"
$fuzz/pp-fuzz inputs "$kind" --libfuzzer -artifact_prefix="$folder/found/" "$@" "$folder/$kind"
