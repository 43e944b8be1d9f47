// Linking needs a C++ compiler and the runtime, and says which of them is missing, or what the compiler said.
// RUN: not env CXX=no-such-compiler pp-compile %s -o %t.exe 2>&1 | FileCheck %s --check-prefix=CXX
// RUN: not pp-compile %s -o %t.exe --runtime=%t.a 2>&1 | FileCheck %s --check-prefix=RUNTIME
// RUN: not env CXX=false pp-compile %s -o %t.exe --runtime=%s 2>&1 | FileCheck %s --check-prefix=LINK
// RUN: not pp-compile %s -o %t.none/x.exe --runtime=%s 2>&1 | FileCheck %s --check-prefix=OUTPUT
// RUN: sed -e 's/batch = 1,/batch = 4294967296,/' -e 's/sequence = 1,/sequence = 4294967296,/' %s > %t.many.mlir
// RUN: not pp-compile %t.many.mlir -o %t.exe 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: sed 's/sequence = 1,/sequence = -1,/' %s > %t.few.mlir
// RUN: not pp-compile %t.few.mlir -o %t.exe 2>&1 | FileCheck %s --check-prefix=FEW
// Nothing is left behind, whole or half.
// RUN: not ls %t.exe

// CXX: error: cannot link: `no-such-compiler`, which CXX names, is not in PATH
// RUNTIME: error: cannot link: no runtime library at `{{.*}}.a`
// LINK: error: cannot link `{{.*}}.exe`: `{{.*}}false` failed with status 1
// OUTPUT: error: cannot write `{{.*}}x.exe`: No such file or directory
// MANY: error: {{.*}}has a step of too few or too many tokens: 1 microbatches of `batch` 4294967296 and `sequence` 4294967296
// FEW: error: {{.*}}has a step of too few or too many tokens: 1 microbatches of `batch` 1 and `sequence` -1

pipeline.program @empty ranks 1 microbatches 1 slices 0 attributes {train = {
    model = "none", schedule = "none", batch = 1, sequence = 1, vocab = 1, precision = "f32"}} {
  pipeline.rank 0 arena 0 {
  }
}
