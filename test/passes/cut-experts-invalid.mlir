// Experts are cut by their matrices, which must be weights of the part: an argument that is none cannot be cut.
// RUN: sed 's/{nn.weight = #nn.weight<"up">}//' %S/cut-experts.mlir | not pp-opt --pp-cut-experts -o /dev/null 2>&1 | FileCheck %s

// CHECK: error: experts are cut whose matrices are no weights of `
