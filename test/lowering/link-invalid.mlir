// Linking needs a C++ compiler and the runtime, and says which of them is missing, or what the compiler said.
// RUN: not env CXX=no-such-compiler pp-compile %s -o %t.exe 2>&1 | FileCheck %s --check-prefix=CXX
// RUN: not pp-compile %s -o %t.exe --runtime=%t.a 2>&1 | FileCheck %s --check-prefix=RUNTIME
// RUN: not env CXX=false pp-compile %s -o %t.exe --runtime=%s 2>&1 | FileCheck %s --check-prefix=LINK
// RUN: not pp-compile %s -o %t.none/x.exe --runtime=%s 2>&1 | FileCheck %s --check-prefix=OUTPUT
// Nothing is left behind, whole or half.
// RUN: not ls %t.exe

// CXX: error: cannot link: `no-such-compiler`, which CXX names, is not in PATH
// RUNTIME: error: cannot link: no runtime library at `{{.*}}.a`
// LINK: error: cannot link `{{.*}}.exe`: `{{.*}}false` failed with status 1
// OUTPUT: error: cannot write `{{.*}}x.exe`: No such file or directory

pipeline.program @empty ranks 1 microbatches 1 slices 0 attributes {train = {
    model = "none", schedule = "none", batch = 1, sequence = 1, vocab = 1, precision = "f32"}} {
  pipeline.rank 0 arena 0 {
  }
}
