// Which pp this is: of the compiler, and of the runtime inside an emitted program.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_RUNTIME_VERSION_H
#define PP_RUNTIME_VERSION_H

namespace pp {

/// `0.1.0 (commit 3d0170e658)`; with `, modified` if the tree was not as committed, `commit unknown` without git.
const char *version();

} // namespace pp

#endif // PP_RUNTIME_VERSION_H
