// The part of the C ABI that is not a kernel: marks of units, and messages handed to the rank's transport.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/Pp.h"
#include "runtime/Rank.h"
#include "runtime/files/Trace.h"
#include "runtime/transport/Transport.h"

extern "C" int32_t pp_begin_unit(pp_rank_t *rank, int32_t unit) {
  rank->unit = unit;
  rank->trace->beginUnit();
  return PP_OK;
}

extern "C" int32_t pp_end_unit(pp_rank_t *rank, int32_t unit) {
  rank->trace->endUnit(unit);
  return PP_OK;
}

extern "C" int32_t pp_judge(pp_rank_t *rank, int32_t, const double *norm2) {
  return rank->judge ? rank->judge(*norm2) : PP_OK;
}

extern "C" int32_t pp_post_send(pp_rank_t *rank, int32_t message, const void *data) {
  int64_t start = rank->trace->mark();
  pp_status_t status = rank->transport->postSend(*rank, message, data);
  rank->trace->posted(message, start);
  return status;
}

extern "C" int32_t pp_post_receive(pp_rank_t *rank, int32_t message, void *data) {
  int64_t start = rank->trace->mark();
  pp_status_t status = rank->transport->postReceive(*rank, message, data);
  rank->trace->posted(message, start);
  return status;
}

extern "C" int32_t pp_post_collective(pp_rank_t *rank, int32_t message, void *data, void *shard) {
  int64_t start = rank->trace->mark();
  pp_status_t status = rank->transport->postCollective(*rank, message, data, shard);
  rank->trace->posted(message, start);
  return status;
}

extern "C" int32_t pp_complete(pp_rank_t *rank, int32_t message) {
  int64_t start = rank->trace->mark();
  pp_status_t status = rank->transport->complete(*rank, message);
  rank->trace->waited(message, start);
  return status;
}
