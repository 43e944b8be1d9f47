// Stands in for cuDNN in builds without it: every attention is our own kernel's.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Sdpa.h"

using namespace pp;

struct Sdpa::State {
  SdpaShape shape;
};

Sdpa::Sdpa() = default;
Sdpa::~Sdpa() = default;
const SdpaShape &Sdpa::shape() const { return state->shape; }
int64_t Sdpa::scratchBytes() const { return 0; }
pp_status_t Sdpa::run(void *const *, char *, void *) const { return PP_INTERNAL; }
std::unique_ptr<Sdpa> Sdpa::create(const SdpaShape &, const std::string &, std::string &why) {
  why = describe();
  return nullptr;
}
Sdpa *Sdpa::shared(const SdpaShape &) { return nullptr; }
std::string Sdpa::refusal(const SdpaShape &, size_t) { return ""; }
std::string Sdpa::firstRefusal() { return ""; }
std::string Sdpa::describe() { return "own kernels (built without cuDNN)"; }
