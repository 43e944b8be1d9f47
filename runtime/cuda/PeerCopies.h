// Messages between GPUs of one machine by their copy engines: no multiprocessor is held, and NCCL has no part in them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// sender's channel      await `ready` .. copy into the receiver's arena, tell `written` ->  done
//                             ^                                                 |
// receiver's channel    tell `ready` .. await `written` ........................v........-> done
//
// Each end of a message has a word in its own memory, which the other end makes 1 and its own stream makes 0 again, so
// that a step of a graph begins with what the one before has left. A send is done when its receive has been posted and
// has all of it, as the proof of the channel map has it. What both ends do blocks their channel's stream alone: one
// warp waits, as NCCL's blocks do (runtime/simt/Messages.h says why no memory operation of the stream).
//
// NCCL 2.28 has a like handshake for its own copies (ce_coll.cc, rma_ce.cc): what a peer is told is a copy of a word,
// behind the data in the same stream, and in graphs whoever has waited sets the word back.
#ifndef PP_RUNTIME_CUDA_PEERCOPIES_H
#define PP_RUNTIME_CUDA_PEERCOPIES_H

#include "runtime/device/StreamDevice.h"
#include <map>

namespace pp {

class PeerCopies {
public:
  PeerCopies(Driver &driver, StreamDevice &device, Transport &mpi, int32_t rank)
      : driver(driver), device(device), mpi(mpi), rank(rank) {}

  /// Whether messages of this rank with the other may go this way, as far as this rank knows before it has asked: they
  /// are on one machine, and nobody has set PP_COPY_ENGINES=off.
  [[nodiscard]] static bool mayServe(int32_t rank, int32_t other);

  /// Makes the words of the rank's messages, when the arena has been made, and memory for `take`.
  Status begin(const RankProgram &its, int64_t room);
  /// Opens the other's memory. `served`: both can reach each other's. Collective over the two.
  Status meet(int32_t other, bool &served);
  /// Tells the other end of a channel where its messages lie, and hears it. `messages` are those of the channel in
  /// their order, which is the other's. Collective over the two.
  Status connect(int32_t other, const std::vector<int32_t> &messages);
  /// Asks for this rank's end of a message on the stream of its channel.
  Status ask(Driver::Stream stream, int32_t message, void *data);

  /// Both ranks hand the other something of one size.
  Status swap(int32_t other, const void *mine, void *theirs, size_t bytes);
  /// Where so many bytes of the block begin that others open. / That block of a rank that has been met, or of this one.
  [[nodiscard]] int64_t take(int64_t bytes);
  [[nodiscard]] char *blockOf(int32_t other) {
    return reinterpret_cast<char *>(other == rank ? words : peers.at(other).words);
  }
  /// A word that is 1.
  [[nodiscard]] const uint32_t *one() const { return words; }

private:
  /// The data that one end of a message sends to the other.
  struct End {
    int64_t offset; ///< where it lies in the arena
    int64_t word;   ///< the number of its word
  };
  struct Peer {
    bool served = false;
    char *arena = nullptr;
    uint32_t *words = nullptr;
  };
  struct Bound {
    const Peer *peer = nullptr;
    End own, other;
  };

  Driver &driver;
  StreamDevice &device;
  Transport &mpi;
  int32_t rank;
  const RankProgram *program = nullptr;
  uint32_t *words = nullptr; ///< on the device; 0 is always 1, then those of messages, then what is taken
  int64_t count = 1;         ///< of words that have an owner
  int64_t taken = 0, blockBytes = 0;
  bool shares = false; ///< others may open this rank's memory
  Driver::Handle arenaHandle = {}, wordsHandle = {};
  std::map<int32_t, Peer> peers;
  std::map<int32_t, Bound> bounds; ///< by message
};

} // namespace pp

#endif // PP_RUNTIME_CUDA_PEERCOPIES_H
