// Counts the operations on files that a program asks for: kills it before one of them, holds fsync, or has it fail.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// For LD_PRELOAD. PP_KILL_AT=N: SIGKILL before the N-th. PP_HOLD=FILE: fsync waits until there is such a file.
// PP_FULL: fsync finds no room.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long done;

static void count(void) {
  const char *at = getenv("PP_KILL_AT");
  if (at && atomic_fetch_add(&done, 1) + 1 == atol(at))
    kill(getpid(), SIGKILL);
}

#define COUNTED(result, name, parameters, arguments)                                                                   \
  result name parameters {                                                                                             \
    static result(*real) parameters;                                                                                   \
    if (!real)                                                                                                         \
      real = (result(*) parameters)dlsym(RTLD_NEXT, #name);                                                            \
    count();                                                                                                           \
    return real arguments;                                                                                             \
  }

COUNTED(FILE *, fopen, (const char *path, const char *mode), (path, mode))
COUNTED(FILE *, fopen64, (const char *path, const char *mode), (path, mode))
COUNTED(int, fclose, (FILE * file), (file))
COUNTED(int, fflush, (FILE * file), (file))
COUNTED(int, rename, (const char *from, const char *to), (from, to))
COUNTED(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
COUNTED(int, unlink, (const char *path), (path))
COUNTED(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags))
COUNTED(int, remove, (const char *path), (path))
COUNTED(int, rmdir, (const char *path), (path))
COUNTED(int, mkdir, (const char *path, mode_t mode), (path, mode))

int open(const char *path, int flags, ...) {
  static int (*real)(const char *, int, ...);
  if (!real)
    real = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open");
  va_list more;
  va_start(more, flags);
  mode_t mode = va_arg(more, mode_t);
  va_end(more);
  count();
  return real(path, flags, mode);
}

int fsync(int file) {
  static int (*real)(int);
  if (!real)
    real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  count();
  for (const char *hold = getenv("PP_HOLD"); hold && access(hold, F_OK) != 0;)
    usleep(10000);
  if (!getenv("PP_FULL"))
    return real(file);
  errno = ENOSPC;
  return -1;
}
