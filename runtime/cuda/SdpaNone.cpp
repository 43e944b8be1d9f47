// Stands in for cuDNN in builds without it: every attention is our own kernel's.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "runtime/cuda/Sdpa.h"

using namespace pp;

struct SdpaPlan::State {
  SdpaShape shape;
};

SdpaPlan::SdpaPlan() = default;
SdpaPlan::~SdpaPlan() = default;
const SdpaShape &SdpaPlan::shape() const { return state->shape; }
int64_t SdpaPlan::scratchBytes() const { return 0; }
pp_status_t SdpaPlan::run(const SdpaTensors &, char *, void *, std::string &) const { return PP_INTERNAL; }
std::unique_ptr<SdpaPlan> SdpaPlan::create(const SdpaShape &, const std::string &, std::string &why) {
  why = describe();
  return nullptr;
}
SdpaPlan *SdpaPlan::shared(const SdpaShape &) { return nullptr; }
std::string SdpaPlan::refusal(const SdpaShape &, size_t) { return ""; }
std::string SdpaPlan::firstRefusal() { return ""; }
std::string SdpaPlan::describe() { return "own kernels (built without cuDNN)"; }
