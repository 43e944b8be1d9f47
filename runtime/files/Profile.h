// What tasks and messages of a run took, for `pp-compile --costs`: means over its steps of usual length.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// {"program": "example", "schedule": "one_f_one_b", "ranks": 2, "transport": "threads" | "mpi",
//  "made_from": {"schedule": "one_f_one_b", "ranks": 2, ..},      the program's fingerprint (analysis/Fingerprint.h)
//  "steps": 10, "of_steps": 18, "warm_up": 2,      the middle half of those after the warm-up, by what they took
//  "seconds": 0.071,        a step: from the first rank's begin to the last one's end
//  "dispatch": 1.2e-7,      of a rank's step what is neither task, post nor wait, for each of these
//  "tasks":    [{"task": "s0.F", "phase": "F", "rank": 0, "count": 144, "median": 1.1e-3, "mean": 1.2e-3}],
//  "messages": [{"kind": "p2p" | "all_reduce", "mesh": true, "bytes": 65536, "count": 288, "post": 1e-6,
//                "last_post": 2.1e-5, "arrival": 4e-6}],
//  "ops":      [{"kernel": "linear", "type": "f32", "dims": [128, 64, 176], "flags": ["accumulate"], "count": 96,
//                "mean": 1.1e-4, "share": 0.21}]}     with --profile-ops: of all ranks, the longest in all first
// `share` is of the time of all tasks. `post` is that of an end which is not the last to post, `last_post` that of the
// last; `arrival` is from the end of the last post to when an end that already waited goes on. Seconds; absent where
// nothing was seen. On a mesh a task's times are those of all devices of the rank, with what they exchange and wait for
// inside it, and `mesh` marks messages among the devices of one rank (absent: between ranks).
#ifndef PP_RUNTIME_FILES_PROFILE_H
#define PP_RUNTIME_FILES_PROFILE_H

#include "runtime/files/Trace.h"

namespace pp {

/// Steps at the start of a run that a profile leaves out: they touch pages and fill caches.
constexpr int64_t profileWarmUp = 2;

/// Writes the profile of all devices' events, all or nothing.
Status writeProfile(const std::string &path, const Program &program, std::string_view transport,
                    const std::vector<RankTrace> &devices);

} // namespace pp

#endif // PP_RUNTIME_FILES_PROFILE_H
