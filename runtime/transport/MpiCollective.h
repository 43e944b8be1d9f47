// One collective of a step over MPI: a communicator for every group of the program, sums in the members' order.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   broadcast MPI_Ibcast      all_gather MPI_Iallgatherv     the data as they are: MPI may route them as it likes
//   all_to_all MPI_Ialltoallv, run by run; who has rows that lie apart packs them: MPI's types took 10 times as long
//   reduce    MPI_Igather     reduce_scatter MPI_Ialltoallv  all_reduce MPI_Iallgather    into scratch, then added here
//
// MPI's own reductions may add in any order, by their manual and in fact (by size, and by where the ranks run): losses
// would differ in their last bits from run to run, from machine to machine, and from the threads transport. So sums are
// gathered and added in the order of the members. It costs nothing for reduce_scatter, where alltoall moves as little
// as any algorithm can; a reduce brings its root n - 1 shares where a tree brings log n; an all_reduce of ranks moves
// n / 2 times as much as a ring, which is why only the norm is all-reduced, and gradients where a schedule says so:
// ZeRO's are cut. Devices of a rank sum in two phases that move as little as a ring: each gets a range of the sum, and
// when it waits for the message hands that range to the others, unless each keeps its own (reduce_scatter). Long sums
// go in segments, so that the scratch is short: results of one segment travel together with the shares of the next. MPI
// wants that in one order at all members: they run one program.
//
// MPI wants one order of the collectives of a communicator at all its members: prove-channels shows it, by group. A
// collective that passes data on (broadcast) goes on only while the ranks between are inside MPI: at every post and
// complete of theirs.
#ifndef PP_RUNTIME_TRANSPORT_MPICOLLECTIVE_H
#define PP_RUNTIME_TRANSPORT_MPICOLLECTIVE_H

// The C interface alone: the C++ bindings of mpi.h would need their own library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include "runtime/Program.h"
#include "runtime/transport/Transport.h"
#include <climits>
#include <map>
#include <memory>
#include <mpi.h>
#include <utility>

namespace pp {

std::string mpiErrorText(int code);
/// MPI counts elements in an int: words, and where these are too many one element of a type that is as long as it must
/// be. Tests set the limit lower.
inline int64_t mostMpiCount = INT_MAX;
/// Bytes of scratch, about, for a sum of members that run the same program. Tests set it lower.
inline int64_t mostMpiScratch = int64_t(64) << 20;
/// So many bytes as MPI counts them; a negative count where MPI makes no such type.
std::pair<int, MPI_Datatype> mpiSized(int64_t bytes);
/// The size of an element with which all of `cuts`, and `most`, fit an int; 0 if there is none.
int64_t mpiUnit(const std::vector<int64_t> &cuts, int64_t most);

/// The communicators of a rank's groups. All ranks make theirs in the order of the channels, so that none waits for one
/// that waits for it.
class MpiGroups {
public:
  Status make(const RankProgram &program);
  [[nodiscard]] MPI_Comm of(const MessageSpec &message) const { return comms.at(message.channel).second; }

private:
  std::map<int32_t, std::pair<std::vector<int32_t>, MPI_Comm>> comms; ///< by channel
};

/// Memory for the sums of a rank. A sum has a block from its post to its complete. A block serves again for a sum of
/// the same length; other blocks are freed before their total passes the plan's bytes.
class SumScratch {
public:
  /// `planned`: what the program says that its sums take; negative: it does not say.
  explicit SumScratch(int64_t planned) : planned(planned) {}
  /// Null if there is no memory, or if it would pass the plan.
  char *take(int64_t bytes);
  void giveBack(const char *block);
  /// The largest number of bytes in use at one time.
  [[nodiscard]] int64_t most() const { return largest; }

private:
  struct Block {
    std::unique_ptr<char[]> data;
    int64_t bytes;
    bool isTaken;
  };
  std::vector<Block> blocks;
  int64_t planned, held = 0, largest = 0;
};

class MpiCollective {
public:
  /// A member's part of a whole that is cut: one run of each round.
  struct Run {
    int64_t begin, bytes;
  };
  using Round = std::vector<Run>;

  /// `rendezvous`: complete only when all members have posted, as with sends that wait for their receive.
  Status bind(const MessageSpec &message, int32_t rank, MPI_Comm comm, bool rendezvous);
  /// Posts it; a code of MPI. Sums are made in `scratch`.
  int post(void *data, void *shard, SumScratch &scratch);
  /// All of it has arrived. True where what is pending has been posted anew, and is to be waited for.
  bool goesOn(int &code);
  [[nodiscard]] std::vector<MPI_Request> &pending() { return requests; }
  /// The next sums have checksums of their terms, or no longer. / Those of the last one; null: it had none.
  void audit(bool wanted) { audited = wanted ? std::make_unique<SumParts>() : nullptr; }
  [[nodiscard]] const SumParts *summedParts() const { return audited.get(); }

private:
  /// A run of the whole, cut over all members: one call of MPI.
  struct Segment {
    std::vector<int> counts, places, inCounts, inPlaces; ///< in elements of the type, by member; `in`: in `parts`
    int64_t ownPlace = 0; ///< of the own range, in bytes of the shard; of the whole where it lies there
    int64_t ownBytes = 0;
  };
  void endSum() { scratch->giveBack(std::exchange(parts, nullptr)); }
  /// One type for all segments, the same at all members: words where all places are made of words.
  Status useUnit(const std::vector<int64_t> &places, int64_t most);
  /// `mine`: bytes of the member's own shard.
  Status cut(const std::vector<Round> &rounds, int64_t mine, int64_t longest);
  /// Posts what members give each other for the sum of a segment. Segments take turns with two scratches.
  int postShares(size_t segment, MPI_Request &request);
  int postShards();
  /// For an audit: notes a term that is given, or a segment of it, and the bytes that have come from these members.
  void noteGiven();
  void noteGiven(const Segment &segment);
  void noteTaken(std::span<const void *const> from, int64_t bytes);
  Status bindAllToAll();
  int postAllToAll();
  /// Rows of an all_to_all, one behind the other in `parts`: those that are given, or back to where they are wanted.
  void pack(bool gives);
  /// A sum of members that complete it in the same order: segment by segment, so that scratch has a limit.
  [[nodiscard]] bool isInTurns() const {
    return (message->kind == MessageSpec::Kind::AllReduce || message->kind == MessageSpec::Kind::ReduceScatter) &&
           message->oneText && (message->group.size() > 2 || message->bytes > mostMpiScratch / 64);
  }

  const MessageSpec *message = nullptr;
  MPI_Comm comm = MPI_COMM_NULL;
  bool rendezvous = false;
  int member = 0, root = 0, count = 0;
  MPI_Datatype type = MPI_BYTE;
  int64_t unit = 1; ///< bytes of the type, where there are segments
  std::vector<Segment> segments;
  SumScratch *scratch = nullptr; ///< where `parts` come from
  int64_t partBytes = 0;         ///< of a sum that this rank gets: of all parts; of what is packed
  char *parts = nullptr;         ///< while it is under way: what each member has, or rows that are packed
  std::vector<const void *> sources;
  std::vector<MPI_Request> requests;
  void *data = nullptr, *shard = nullptr;
  size_t summed = 0;                 ///< segments of a sum in turns
  std::unique_ptr<SumParts> audited; ///< null: nobody asks
};

} // namespace pp

#endif // PP_RUNTIME_TRANSPORT_MPICOLLECTIVE_H
