// Collectives between GPUs of one machine by copies and a sum, in one order on all members: NCCL has no part in them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Each member has a window of its memory that the others read. A message goes through it in rounds, each of which is
//
//   all_gather, broadcast        put own piece | ready | copy the others' pieces                              | read
//   reduce_scatter, reduce       put each other's piece | ready | sum own piece                               | read
//   all_reduce                   the same, with the sum put into the window | summed | copy the others' sums  | read
//   all_to_all                   put each other's rows | ready | copy own rows                                | read
//
// At a word such as `ready` a member tells all others, by a word of their memory, and waits until all have told it. It
// blocks the channel's stream alone, as a message between two ranks does (PeerCopies.h). Sums are made in the order of
// the members, so that they have the same bits in every run, and those of a run in one process.
#ifndef PP_RUNTIME_CUDA_PEERGROUP_H
#define PP_RUNTIME_CUDA_PEERGROUP_H

#include "runtime/cuda/PeerCopies.h"

namespace pp {

class PeerGroup {
public:
  /// `own` is the place of this rank among the members; `bytes` are those of the largest message.
  PeerGroup(Driver &driver, PeerCopies &peers, const std::vector<int32_t> &members, size_t own, int64_t bytes);

  /// The bytes of `PeerCopies::take` that a group of so many members needs. PP_COPY_WINDOW bounds them, for tests.
  [[nodiscard]] static int64_t roomFor(size_t members, int64_t bytes);
  /// Opens the windows of the others; what they share has been met. Collective over the members.
  Status connect();
  /// Asks for this member's part of a message on the stream of its channel.
  Status ask(Driver::Stream stream, const MessageSpec &message, void *data, void *shard);

private:
  enum Word : uint8_t { Ready, Summed, Read };
  struct Member {
    uint32_t *words = nullptr; ///< in its memory: of each member the three that this member writes
    char *window = nullptr;
  };
  /// A run of bytes that is given: where it lies in the whole, and in what its owner has of it.
  struct Piece {
    int64_t whole, owned, bytes;
  };

  [[nodiscard]] std::vector<std::vector<Piece>> piecesOf(const MessageSpec &message, int64_t most) const;
  [[nodiscard]] int64_t windowBytes() const;
  [[nodiscard]] char *slot(size_t member, size_t of) const { return group[member].window + int64_t(of) * slotBytes; }
  Status handshake(Word word);
  Status gather(const MessageSpec &message, char *data, char *shard);
  Status reduce(const MessageSpec &message, char *data, char *shard);
  Status exchange(const MessageSpec &message, char *data, char *shard);

  Driver &driver;
  PeerCopies &peers;
  std::vector<int32_t> members;
  size_t own;
  int64_t slotBytes; ///< of the window, for each member
  std::vector<Member> group;
  Driver::Stream stream = -1;
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_PEERGROUP_H
