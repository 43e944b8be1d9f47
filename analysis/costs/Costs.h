// What tasks and messages cost: in the units that papers count in, by a cluster's data sheet, or as measured.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#ifndef PP_ANALYSIS_COSTS_COSTS_H
#define PP_ANALYSIS_COSTS_COSTS_H

#include "analysis/BodyTable.h"
#include "analysis/costs/Interleave.h"
#include "llvm/ADT/DenseSet.h"
#include "llvm/ADT/SetVector.h"
#include <memory>

namespace pp {

/// The way of one message: it has its links to itself for `transfer`, and is there `latency` later.
struct Route {
  double latency = 0, transfer = 0;
  /// Set if ranks move the bytes themselves: the times of the last end's post and of another post, and the delay after
  /// the arrival until a waiting rank goes on.
  double lastPost = 0, post = 0, wake = 0;
  llvm::SmallVector<std::string, 2> links; ///< names; two messages that share one go one after the other
  llvm::SmallVector<double, 2> volumes;    ///< how many times the bytes of the message pass each link
};

/// Takes the place of a rank: the host memory of the rank at the message's other end.
constexpr int64_t kHost = -1;

/// A sum that names one rank is over the devices of that rank, as are a scatter and a gather.
inline bool isOverMesh(pipeline::PostKind kind, llvm::ArrayRef<int64_t> ranks) {
  using pipeline::PostKind;
  bool isHalf = kind == PostKind::reduce_scatter || kind == PostKind::all_gather;
  return (kind == PostKind::all_reduce || isHalf) && ranks.size() == 1;
}

/// The message is over the devices of a rank.
inline bool isOverMesh(pipeline::PostOp post) {
  return post.isCollective() && (post.isInPlace() || isOverMesh(post.getKind(), post.getPeers()));
}

/// Which units compute and exchange nothing, for their bodies only hand values on. So does an F of which nothing is
/// read before the unit's R or backward, which then do its work.
class EmptyUnits {
public:
  explicit EmptyUnits(pipeline::ProgramOp program);
  bool isEmpty(pipeline::LaunchOp launch) const { return bodies.contains(launch.getCalleeAttr().getAttr()); }
  /// The length of a launch relative to its phase: 0 if it is empty; 3/2 for a B, and 2 for an I, that also does the
  /// work of F.
  double factorOf(pipeline::LaunchOp launch) const;

private:
  llvm::DenseSet<mlir::StringAttr> bodies;          ///< that are empty
  llvm::DenseSet<pipeline::CoordAttr> forwardLater; ///< whose F is empty, and no R does its work
};

/// The costs of tasks and messages, in seconds or (unit costs) in any unit of time.
class CostModel {
public:
  virtual ~CostModel() = default;
  /// The time of this launch on this rank.
  virtual double of(int64_t rank, pipeline::LaunchOp launch) const = 0;
  /// When a launch and the one beside it begin and end; here one after the other.
  virtual BesideTimes ofBoth(int64_t rank, pipeline::LaunchOp first, pipeline::LaunchOp second) const;
  /// The time of each op of this task body on this rank; empty if only the body's time is known.
  virtual llvm::SmallVector<OpTime> opTimes(int64_t rank, llvm::StringRef body) const { return {}; }
  /// `ranks` are sender and receiver (`kind` is send; one of them may be kHost), or the members of a collective as a
  /// ring (PostOp::ringOrder).
  virtual Route route(pipeline::PostKind kind, llvm::ArrayRef<int64_t> ranks, int64_t bytes) const;
  /// True where times are multiples of a unit and not seconds.
  virtual bool isUnitTime() const { return false; }
  /// Says what a unit of time is, unless that is obvious.
  virtual std::string str() const { return ""; }
};

/// What a unit of each piece counts where nobody says what parts cost. Where all stages hold as many layers, as papers
/// assume, a stage counts 1. Where they do not, it counts its layers, in the largest number of layers that divides all:
/// [2, 2, 6, 6] count 1, 1, 3, 3. A stage without a layer and a part of the model count 1.
class PieceWeights {
public:
  explicit PieceWeights(pipeline::ProgramOp program);
  double of(pipeline::CoordAttr coord) const;
  /// A note for who reads the times: which layers are 1, which parts count as a stage. Empty if all stages are alike
  /// and the model has no parts.
  std::string str() const;

private:
  llvm::DenseMap<std::pair<mlir::Attribute, int64_t>, int64_t> layers; ///< of stages, at least 1
  llvm::SetVector<mlir::StringAttr> parts;
  int64_t unit = 1, least = 1, most = 1; ///< layers
};

/// The costs papers count in: F, I, W and R 1, B 2, times the piece's weight; units that compute nothing, messages and
/// everything that is not a unit take no time. The backward that does the work of an empty F takes that time, too.
class UnitCosts : public CostModel {
public:
  explicit UnitCosts(pipeline::ProgramOp program) : weights(program), empty(program) {}
  double of(int64_t rank, pipeline::LaunchOp launch) const override;
  bool isUnitTime() const override { return true; }
  std::string str() const override { return weights.str(); }

protected:
  PieceWeights weights;
  EmptyUnits empty;
};

/// One cell for each unit that computes something.
struct CellCosts : UnitCosts {
  using UnitCosts::UnitCosts;
  double of(int64_t rank, pipeline::LaunchOp launch) const override {
    return launch.getUnit().getPhase() != pipeline::Phase::U && !empty.isEmpty(launch);
  }
};

/// A collective as a ring of its members: how many times its bytes pass every link, in how many steps after each other,
/// and over how many of the links from each member to the next.
struct Ring {
  double volume, steps;
  size_t hops;
};
Ring ringOf(pipeline::PostKind kind, size_t members);

/// By the program's attribute `cluster`; `experts` as ExpertLoad reads it. Null after an error.
std::unique_ptr<CostModel> makeClusterCosts(pipeline::ProgramOp program, llvm::StringRef experts);

/// By a profile that an emitted program wrote; null after an error, and where the profile lacks what the program does.
std::unique_ptr<CostModel> makeMeasuredCosts(pipeline::ProgramOp program, llvm::StringRef path);

/// Writes the costs of all parts of the model, `attn=3,post=2,rest=1`, into the program's attribute `costs`.
mlir::LogicalResult setPartCosts(pipeline::ProgramOp program, llvm::StringRef costs);

/// Times of units: F, I, W and R take the weight of their piece, and B takes twice that. If the program has
/// `costs`, the sum over the unit's parts replaces the weight. On slices, an attention costs as much for each slice
/// of keys.
class UnitTimes {
public:
  explicit UnitTimes(pipeline::ProgramOp program);
  double of(pipeline::UnitIdAttr unit) const;
  /// The time of this task or launch of the unit.
  double of(pipeline::TaskOp task) const { return of(task.getUnit(), bodies.of(task)); }
  double of(pipeline::LaunchOp launch) const { return of(launch.getUnit(), bodies.of(launch)); }
  bool areByPart() const { return byPart; }

private:
  double of(pipeline::UnitIdAttr unit, pipeline::BodyAttr body) const;

  struct Cost {
    llvm::SmallVector<double> cuts = {0}; ///< before the first attention, in it, behind it, ..
    double again = 0;                     ///< what R runs of that without attention
    double attendsAgain = 0;              ///< and in attentions
  };
  const Cost &costOf(pipeline::UnitIdAttr unit) const;

  BodyTable bodies;
  bool byPart;
  llvm::DenseMap<std::pair<mlir::Attribute, int64_t>, Cost> pieces;
};

/// `units`, `cluster`, costs of parts or the path of a profile; empty: by the program's cluster if it has one, else
/// units. `experts` is how choices fall on experts, for a cluster's costs alone: equally where it is empty. Null after
/// an error.
std::unique_ptr<CostModel> makeCosts(pipeline::ProgramOp program, llvm::StringRef choice, llvm::StringRef experts = "");

} // namespace pp

#endif // PP_ANALYSIS_COSTS_COSTS_H
