// Tells the allocator of a tool that what a pass frees is wanted again by the next one.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_MEMORY_H
#define PP_PASSES_MEMORY_H

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace pp {

/// By default glibc returns free memory to the system at once, and then asks for zeroed pages again: this takes half
/// the time of linearize-actions. `malloc_trim`, which project-ranks calls, still returns memory.
inline void keepFreeMemory() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20); // the largest that glibc takes
#endif
}

} // namespace pp

#endif // PP_PASSES_MEMORY_H
