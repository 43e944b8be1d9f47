// A program as the compiler emits it, made by hand: one or two ranks train an embedding and a head.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Rank 0 has the embedding, rank 1 the head; act goes right, dact left, the squared norm is summed over both. Every
// rank uses one layout of the arena, wide enough for f64. PP_TEST_FAULT=<what>:<rank>:<step>,.. makes ranks misbehave.
#include "runtime/Pp.h"
#include "runtime/Rank.h"
#include "runtime/Status.h"
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#ifndef PP_TEST_RANKS
#define PP_TEST_RANKS 2
#endif
#ifndef PP_TEST_TYPE
#define PP_TEST_TYPE "f32"
#endif
#define PP_TEXT_OF(x) #x
#define PP_TEXT(x) PP_TEXT_OF(x)

namespace {

constexpr int microbatches = 2, batch = 2, length = 8, hidden = 16, vocab = 128, tokens = batch * length;
constexpr bool twoRanks = PP_TEST_RANKS == 2;
const std::string type = PP_TEST_TYPE, acc = type == "f64" ? "f64" : "f32";
constexpr int weightBytes = vocab * hidden * 8, actBytes = tokens * hidden * 8;
const int elementSize = type == "f64" ? 8 : type == "f32" ? 4 : 2;

enum Place : int {
  tableWeight = 0,
  headWeight = tableWeight + weightBytes,
  tableGrad = headWeight + weightBytes,
  headGrad = tableGrad + weightBytes,
  tableState = headGrad + weightBytes,
  headState = tableState + 3 * weightBytes,
  tokensAt = headState + 3 * weightBytes,
  targetsAt = tokensAt + microbatches * tokens * 4,
  actAt = targetsAt + microbatches * tokens * 4,
  dactAt = actAt + microbatches * actBytes,
  logitsAt = dactAt + microbatches * actBytes,
  lossAt = logitsAt + tokens * vocab * 8,
  normAt = lossAt + microbatches * 64,
  neverAt = normAt + 64,
  arenaBytes = neverAt + 64
};
enum Op : int32_t {
  embed,
  embedDw,
  embedDwMore,
  head,
  entropy,
  headDx,
  headDw,
  headDwMore,
  squares,
  squaresMore,
  adam
};
enum Message : int32_t { act = 0, dact = microbatches, norm = 2 * microbatches, never };

std::string op(const std::string &kernel, const std::string &dims, const std::string &flags, double param = 0) {
  return pp::text("{\"kernel\": \"", kernel, "\", \"type\": \"", type, "\", \"dims\": [", dims, "], \"params\": [",
                  param != 0 ? pp::text(param) : std::string(), "], \"flags\": [", flags, "]}");
}

std::string ops() {
  std::string flat = pp::text(vocab * hidden), rows = pp::text(tokens, ", ", hidden, ", ", vocab);
  return op("embedding", rows, "") + ", " + op("embedding_dw", rows, "") + ", " +
         op("embedding_dw", rows, "\"accumulate\"") + ", " + op("linear", rows, "") + ", " +
         op("cross_entropy", pp::text(tokens, ", ", vocab), "", 1.0 / (microbatches * tokens)) + ", " +
         op("linear_dx", rows, "") + ", " + op("linear_dw", rows, "") + ", " + op("linear_dw", rows, "\"accumulate\"") +
         ", " + op("sum_squares", flat, "") + ", " + op("sum_squares", flat, "\"accumulate\"") + ", " +
         op("adamw", flat, "\"decay\"");
}

std::string messages(int rank) {
  if (!twoRanks)
    return "";
  std::string out;
  for (const char *what : {"act", "dact"})
    for (int mb = 0; mb < microbatches; ++mb) {
      bool sends = (what[0] == 'a') == (rank == 0);
      out += pp::text("{\"kind\": \"", sends ? "send" : "receive", "\", \"peer\": ", 1 - rank,
                      ", \"channel\": ", what[0] == 'a' ? 0 : 1, ", \"bytes\": ", tokens * hidden * elementSize,
                      ", \"label\": \"", what, "(", mb, ")\"}, ");
    }
  out += "{\"kind\": \"all_reduce\", \"group\": [0, 1], \"channel\": 2, \"count\": 1, \"type\": \"f64\", \"label\": "
         "\"norm\"}";
  // A message that only a faulty run posts, so that somebody can wait for what never comes.
  return out + pp::text(", {\"kind\": \"", rank == 0 ? "send" : "receive", "\", \"peer\": ", 1 - rank,
                        ", \"channel\": 3, \"bytes\": 64, \"label\": \"never\"}");
}

std::string tensor(const std::string &name, bool isHead, const std::string &element, int offset,
                   const std::string &more) {
  return pp::text("{\"name\": \"", name, "\", \"shape\": ", isHead ? "[16, 128]" : "[128, 16]", ", \"stored\": \"",
                  isHead ? "transposed" : "plain", "\", \"type\": \"", element, "\", \"offset\": ", offset, more, "}");
}

std::string stateOf(const std::string &name, bool isHead, int offset) {
  std::string out = tensor(name, isHead, acc, offset, ", \"kind\": \"m\"") + ", " +
                    tensor(name, isHead, acc, offset + weightBytes, ", \"kind\": \"v\"");
  if (elementSize == 2)
    out += ", " + tensor(name, isHead, acc, offset + 2 * weightBytes, ", \"kind\": \"master\"");
  return out;
}

std::string rankJson(int rank) {
  const std::string tableName = "model.embed_tokens.weight", headName = "lm_head.weight";
  const std::string init = ", \"init\": {\"kind\": \"normal\", \"deviation\": 0.2}, \"save\": true, \"tied\": false";
  bool hasTable = rank == 0, hasHead = rank == PP_TEST_RANKS - 1;
  std::string weights, state, grads, inputs, losses, units;
  auto add = [](std::string &list, const std::string &entry) { list += (list.empty() ? "" : ", ") + entry; };
  if (hasTable) {
    add(weights, tensor(tableName, false, type, tableWeight, init));
    add(state, stateOf(tableName, false, tableState));
    add(grads, tensor(tableName, false, acc, tableGrad, ""));
  }
  if (hasHead) {
    add(weights, tensor(headName, true, type, headWeight, init));
    add(state, stateOf(headName, true, headState));
    add(grads, tensor(headName, true, acc, headGrad, ""));
  }
  for (int mb = 0; mb < microbatches; ++mb) {
    if (hasTable)
      add(inputs,
          pp::text("{\"kind\": \"tokens\", \"microbatch\": ", mb, ", \"offset\": ", tokensAt + mb * tokens * 4, "}"));
    if (hasHead) {
      add(inputs,
          pp::text("{\"kind\": \"targets\", \"microbatch\": ", mb, ", \"offset\": ", targetsAt + mb * tokens * 4, "}"));
      add(losses, pp::text("{\"microbatch\": ", mb, ", \"offset\": ", lossAt + mb * 64, ", \"type\": \"", acc, "\"}"));
    }
    for (const char *phase : {"F", "B"})
      add(units, pp::text("{\"name\": \"", rank, phase, mb, "\", \"phase\": \"", phase, "\", \"microbatch\": ", mb,
                          ", \"flops\": 1000}"));
  }
  add(units, pp::text("{\"name\": \"", rank, "U\", \"phase\": \"U\", \"microbatch\": -1, \"flops\": 10}"));
  return pp::text("{\"rank\": ", rank, ", \"arena_bytes\": ", int(arenaBytes),
                  ", \"peak\": {\"total\": ", int(arenaBytes), "}, \"ops\": [", ops(), "], \"units\": [", units,
                  "], \"messages\": [", messages(rank), "], \"weights\": [", weights, "], \"state\": [", state,
                  "], \"grads\": [", grads, "], \"inputs\": [", inputs, "], \"losses\": [", losses,
                  "], \"norm\": {\"offset\": ", int(normAt), "}}");
}

/// The fault that PP_TEST_FAULT asks of this rank in this step, or an empty text.
std::string faultOf(const pp_rank_t &rank) {
  const char *asked = getenv("PP_TEST_FAULT");
  std::istringstream list(asked ? asked : "");
  std::string suffix = pp::text(":", rank.rank, ":", rank.optimizer.step);
  for (std::string one; std::getline(list, one, ',');)
    if (one.ends_with(suffix))
      return one.substr(0, one.size() - suffix.size());
  return "";
}

int32_t misbehave(pp_rank_t *rank, char *arena) {
  std::string fault = faultOf(*rank);
  if (fault == "kill")
    raise(SIGKILL);
  if (fault == "sleep")
    sleep(1000);
  if (fault == "fail")
    return rank->fail(PP_INTERNAL, "asked to fail");
  if (fault == "leak" && twoRanks)
    return rank->rank == 0 ? pp_post_send(rank, never, arena + neverAt) : PP_OK;
  if (fault == "wait" && twoRanks) {
    if (int32_t status = rank->rank == 0 ? pp_post_send(rank, never, arena + neverAt)
                                         : pp_post_receive(rank, never, arena + neverAt))
      return status;
    return pp_complete(rank, never);
  }
  return PP_OK;
}

#define PP_DO(call)                                                                                                    \
  do {                                                                                                                 \
    if (int32_t status = (call))                                                                                       \
      return status;                                                                                                   \
  } while (0)

int32_t forward(pp_rank_t *rank, char *arena, int mb) {
  auto *ids = reinterpret_cast<int32_t *>(arena + tokensAt) + mb * tokens;
  PP_DO(pp_begin_unit(rank, 2 * mb));
  PP_DO(pp_embedding(rank, embed, ids, arena + tableWeight, arena + actAt + mb * actBytes));
  return pp_end_unit(rank, 2 * mb);
}

int32_t headBackward(pp_rank_t *rank, char *arena, int mb) {
  auto *ids = reinterpret_cast<int32_t *>(arena + targetsAt) + mb * tokens;
  char *x = arena + actAt + mb * actBytes, *z = arena + logitsAt;
  PP_DO(pp_begin_unit(rank, 2 * mb + 1));
  PP_DO(pp_linear(rank, head, x, arena + headWeight, nullptr, z));
  PP_DO(pp_cross_entropy(rank, entropy, z, ids, z, arena + lossAt + mb * 64));
  PP_DO(pp_linear_dx(rank, headDx, z, arena + headWeight, arena + dactAt + mb * actBytes));
  PP_DO(pp_linear_dw(rank, mb ? headDwMore : headDw, x, z, arena + headGrad));
  return pp_end_unit(rank, 2 * mb + 1);
}

int32_t tableBackward(pp_rank_t *rank, char *arena, int mb) {
  auto *ids = reinterpret_cast<int32_t *>(arena + tokensAt) + mb * tokens;
  PP_DO(pp_begin_unit(rank, 2 * mb + 1));
  PP_DO(pp_embedding_dw(rank, mb ? embedDwMore : embedDw, ids, arena + dactAt + mb * actBytes, arena + tableGrad));
  return pp_end_unit(rank, 2 * mb + 1);
}

int32_t update(pp_rank_t *rank, char *arena, bool hasTable, bool hasHead) {
  auto *sum = reinterpret_cast<double *>(arena + normAt);
  PP_DO(pp_begin_unit(rank, 2 * microbatches));
  if (hasTable)
    PP_DO(pp_sum_squares(rank, squares, arena + tableGrad, sum));
  if (hasHead)
    PP_DO(pp_sum_squares(rank, hasTable ? squaresMore : squares, arena + headGrad, sum));
  if (twoRanks) {
    PP_DO(pp_post_collective(rank, norm, sum, nullptr));
    PP_DO(pp_complete(rank, norm));
  }
  for (bool isHead : {false, true})
    if (isHead ? hasHead : hasTable) {
      char *state = arena + (isHead ? headState : tableState);
      PP_DO(pp_adamw(rank, adam, arena + (isHead ? headGrad : tableGrad), sum,
                     arena + (isHead ? headWeight : tableWeight), state, state + weightBytes,
                     elementSize == 2 ? state + 2 * weightBytes : nullptr));
    }
  return pp_end_unit(rank, 2 * microbatches);
}

int32_t stepLeft(pp_rank_t *rank, char *arena) {
  for (int mb = 0; mb < microbatches; ++mb)
    PP_DO(pp_post_receive(rank, dact + mb, arena + dactAt + mb * actBytes));
  for (int mb = 0; mb < microbatches; ++mb) {
    PP_DO(forward(rank, arena, mb));
    PP_DO(pp_post_send(rank, act + mb, arena + actAt + mb * actBytes));
  }
  PP_DO(misbehave(rank, arena));
  for (int mb = 0; mb < microbatches; ++mb) {
    PP_DO(pp_complete(rank, dact + mb));
    PP_DO(tableBackward(rank, arena, mb));
    PP_DO(pp_complete(rank, act + mb));
  }
  return update(rank, arena, true, false);
}

int32_t stepRight(pp_rank_t *rank, char *arena) {
  for (int mb = 0; mb < microbatches; ++mb)
    PP_DO(pp_post_receive(rank, act + mb, arena + actAt + mb * actBytes));
  PP_DO(misbehave(rank, arena));
  for (int mb = 0; mb < microbatches; ++mb) {
    PP_DO(pp_complete(rank, act + mb));
    PP_DO(headBackward(rank, arena, mb));
    PP_DO(pp_post_send(rank, dact + mb, arena + dactAt + mb * actBytes));
  }
  for (int mb = 0; mb < microbatches; ++mb)
    PP_DO(pp_complete(rank, dact + mb));
  return update(rank, arena, false, true);
}

[[maybe_unused]] int32_t stepAlone(pp_rank_t *rank, char *arena) {
  PP_DO(misbehave(rank, arena));
  for (int mb = 0; mb < microbatches; ++mb) {
    PP_DO(forward(rank, arena, mb));
    PP_DO(headBackward(rank, arena, mb));
    PP_DO(tableBackward(rank, arena, mb));
  }
  return update(rank, arena, true, true);
}

const std::string leftJson = rankJson(0), rightJson = rankJson(1);

} // namespace

extern "C" {
extern const char pp_program_json[];
const int32_t pp_rank_count = PP_TEST_RANKS;
const pp_rank_entry_t pp_rank_table[] = {{leftJson.c_str(), twoRanks ? stepLeft : stepAlone, nullptr},
                                         {rightJson.c_str(), stepRight, nullptr}};
const char pp_program_json[] = R"({"name": "byhand", "model": "tiny", "schedule": "byhand", "ranks": )" PP_TEXT(
    PP_TEST_RANKS) R"(, "microbatches": 2, "batch": 2, "sequence": 8, "vocab": 128, "precision": ")" PP_TEST_TYPE R"(",
  "parameters": 4096, "flops_per_step": 1e6, "tokens_per_step": 32,
  "optimizer": {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1, "clip": 1.0,
                "warmup": 4, "decay_steps": 0, "min_lr": 0.1, "loss_scale": 65536, "scale_window": 3}})";
}
