// The messages of rank programs: which posts are ends of the same message, its number, and the bytes that it brings.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_MESSAGES_H
#define PP_ANALYSIS_MESSAGES_H

#include "dialect/nn/Nn.h"
#include "dialect/pipeline/Pipeline.h"
#include "llvm/ADT/DenseMap.h"

namespace pp {

/// Numbers messages from 1: sends and collectives by the order of ranks and lists. An emitted program counts the same
/// way (runtime/files/Trace.cpp), so that a planned and a measured message have the same number.
class Messages {
public:
  Messages() = default;
  explicit Messages(pipeline::ProgramOp program);

  int64_t size() const { return count; }
  int64_t numberOf(pipeline::PostOp post) const { return numbers.lookup(post); }

private:
  llvm::DenseMap<mlir::Operation *, int64_t> numbers; ///< by post
  int64_t count = 0;
};

/// Bytes that a rank sends, receives or has all of in a collective: of its slot, or of the first tensors of it.
int64_t bytesOf(pipeline::PostOp post);
/// Bytes that come to the rank from others, if each member sends its own directly.
int64_t bytesReceived(pipeline::PostOp post);

//===-- Exchanges inside bodies ---------------------------------------------------------------------------------===//

/// A message between the devices of one rank, which all run the body that it stands in.
struct InnerMessage {
  nn::Exchange op;
  pipeline::AxesAttr axes;
  int64_t members;
  /// On the devices' own channel: of each set of axes, and number of neighbours, there is one.
  int64_t channel;
  mlir::RankedTensorType type; ///< of the whole: the result, or what is scattered; of an all_to_all the own share
  /// The bytes of the whole that each member of a gather or scatter has, as in `pipeline.post`.
  llvm::SmallVector<int64_t> cuts;
  /// Whether members come in reverse order in every second round: two runs of a sequence.
  bool zigzag = false;
  /// Of `type`.
  int64_t bytes() const;
  /// Bytes that come to each device from the others.
  int64_t received() const;
  /// `all_reduce over tensor`.
  std::string str() const;
};

/// Channels from this one on are those of exchanges.
inline constexpr int64_t kFirstInnerChannel = int64_t(1) << 30;

/// The message of the exchange on this mesh; an error at the op if they do not fit. Null: there is no mesh.
mlir::FailureOr<InnerMessage> innerMessage(nn::Exchange op, pipeline::MeshAttr mesh);

/// The exchanges of a body in order, as far as they fit; of no body none.
llvm::SmallVector<InnerMessage> innerMessages(mlir::func::FuncOp body, pipeline::MeshAttr mesh);

} // namespace pp

#endif // PP_ANALYSIS_MESSAGES_H
