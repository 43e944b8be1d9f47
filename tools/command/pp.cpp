// The program `pp` tells what can be known of a schedule without running it; its file needs nothing of the machine.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/command/Tool.h"

int main(int argc, char **argv) { return pp::runTool(argc, argv, nullptr); }
