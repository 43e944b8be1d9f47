// Counts the operations on files that a program asks for: kills it before one of them, holds fsync, or has it fail.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// For LD_PRELOAD. PP_KILL_AT=N: SIGKILL before the N-th. PP_KILL_TENSORS=N: before the N-th file of tensors is whole.
// PP_HOLD=FILE: fsync waits until there is such a file. PP_FULL: fsync finds no room.
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

static void killAt(const char *variable, atomic_long *done) {
  const char *at = getenv(variable);
  if (at && atomic_fetch_add(done, 1) + 1 == atol(at))
    kill(getpid(), SIGKILL);
}

static void count(void) {
  static atomic_long done;
  killAt("PP_KILL_AT", &done);
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

#define OPENS(name, parameters, arguments)                                                                             \
  int name parameters {                                                                                                \
    static int(*real) parameters;                                                                                      \
    if (!real)                                                                                                         \
      real = (int(*) parameters)dlsym(RTLD_NEXT, #name);                                                               \
    va_list more;                                                                                                      \
    va_start(more, flags);                                                                                             \
    mode_t mode = va_arg(more, mode_t);                                                                                \
    va_end(more);                                                                                                      \
    count();                                                                                                           \
    return real arguments;                                                                                             \
  }

OPENS(open, (const char *path, int flags, ...), (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))

int renameat(int a, const char *from, int b, const char *to) {
  static int (*real)(int, const char *, int, const char *);
  static atomic_long done;
  if (!real)
    real = (int (*)(int, const char *, int, const char *))dlsym(RTLD_NEXT, "renameat");
  count();
  killAt("PP_KILL_TENSORS", &done);
  return real(a, from, b, to);
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
