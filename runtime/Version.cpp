// Says which pp this is; compiled again with every commit.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Version.h"
#include "runtime/Commit.h"

const char *pp::version() { return PP_VERSION " (commit " PP_COMMIT ")"; }
