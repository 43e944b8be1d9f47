// Tells the allocator of a tool which of the memory that passes free is wanted again.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_PASSES_MEMORY_H
#define PP_PASSES_MEMORY_H

#include <cstdlib>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace pp {

/// By default glibc returns free memory to the system at once, and then asks for zeroed pages again: this takes half
/// the time of linearize-actions.
inline void keepFreeMemory() {
#ifdef __GLIBC__
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 32 << 20); // the largest that glibc takes
#endif
}

/// Memory that one thread has freed is of no use to the others, which allocate in arenas of their own.
inline void returnFreeMemory() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

} // namespace pp

#endif // PP_PASSES_MEMORY_H
