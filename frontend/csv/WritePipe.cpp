// Writes stages and actions as a `.pipe` file that a person can read and go on from.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/csv/Csv.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringExtras.h"
#include <set>

using namespace llvm;
using namespace pp;
using namespace pp::pipeline;

namespace {

constexpr size_t kColumns = 100;

class PipeWriter {
public:
  PipeWriter(ProgramOp program, StringRef name, raw_ostream &os) : program(program), name(name), os(os) {}

  void write(StringRef origin) {
    uint64_t p = program.getRanks(), m = program.getMicrobatches();
    readPlaces();
    os << "# The schedule of `" << origin << "`: " << count(p, "rank", "ranks") << ", "
       << count(m, "microbatch", "microbatches") << ", " << count(places.size(), "stage", "stages") << ".\n";
    os << "schedule " << name << "(ranks p = " << p << ", microbatches m = " << m << ") {\n";
    os << "  require p == " << p << " and m == " << m << ", \"these lists are for " << count(p, "rank", "ranks")
       << " and " << count(m, "microbatch", "microbatches") << "\"\n";
    os << "  stage s of " << places.size() << " at " << placement() << layers() << "\n";
    writeRecomputed();
    Block &body = program.getBody().front();
    bool ordered = false;
    body.walk([&](TransferOp transfer) { ordered |= !isOffload(transfer); });
    if (ordered)
      writeOrder(body);
    else
      for (uint64_t rank = 0; rank < p; ++rank)
        writeList(rank, body);
    os << "}\n";
  }

private:
  using Block = mlir::Block;
  using Operation = mlir::Operation;
  ProgramOp program;
  StringRef name;
  raw_ostream &os;
  std::vector<int64_t> places;
  size_t column = 0;

  static std::string count(uint64_t number, StringRef one, StringRef many) {
    return (Twine(number) + " " + (number == 1 ? one : many)).str();
  }

  void readPlaces() {
    for (auto piece : program.getOps<PieceOp>())
      places.push_back(piece.getAtAttr().getRanks().front());
  }

  /// The map from stages to ranks as a formula where it is one of the usual ones.
  std::string placement() {
    int64_t n = places.size(), p = program.getRanks();
    auto is = [&](auto formula) {
      return all_of(enumerate(places), [&](auto entry) { return entry.value() == formula(int64_t(entry.index())); });
    };
    if (n == p && is([](int64_t s) { return s; }))
      return "s";
    if (is([&](int64_t s) { return s % p; }))
      return "s % p";
    if (n == 2 * p && is([&](int64_t s) { return std::min(s, n - 1 - s); }))
      return "min(s, 2 * p - 1 - s)";
    return listOf(places) + "[s]";
  }

  static std::string listOf(ArrayRef<int64_t> numbers) {
    std::string list;
    for (int64_t number : numbers)
      list += (list.empty() ? "[" : ", ") + std::to_string(number);
    return list + "]";
  }

  /// Whether a part only fills a stage that holds none.
  bool passesOn(mlir::ArrayAttr part) {
    auto module = program->getParentOfType<mlir::ModuleOp>();
    auto function = module.lookupSymbol<mlir::func::FuncOp>(cast<mlir::StringAttr>(part[0]));
    return function && function.front().without_terminator().empty();
  }

  /// The number of layers (and parts behind them) of each stage, if stages differ. The last stage holds the parts that
  /// are left.
  std::string layers() {
    std::vector<std::string> counts;
    for (auto piece : program.getOps<PieceOp>()) {
      std::set<int64_t> its;
      size_t behind = 0;
      for (auto part : piece.getParts().getAsRange<mlir::ArrayAttr>())
        if (auto layer = cast<mlir::IntegerAttr>(part[1]).getInt(); layer >= 0)
          its.insert(layer), behind = 0;
        else
          behind += !passesOn(part);
      bool isEnd = counts.empty() ? its.empty() : counts.size() + 1 == places.size();
      counts.push_back(behind && !isEnd ? "[" + std::to_string(its.size()) + ", " + std::to_string(behind) + "]"
                                        : std::to_string(its.size()));
    }
    return all_of(counts, [&](auto &count) { return count == counts.front(); })
               ? ""
               : " layers [" + join(counts, ", ") + "][s]";
  }

  /// The stages that forget; the schedule's language puts R before their backwards.
  void writeRecomputed() {
    std::set<int64_t> again;
    program.getBody().walk([&](UnitOp unit) {
      if (unit.getUnit().getPhase() == Phase::R)
        again.insert(unit.getUnit().getCoord().getIndex());
    });
    int64_t number = 0;
    for (auto piece : program.getOps<PieceOp>()) {
      bool isPart = piece.getRecompute().has_value();
      if (isPart || again.count(number))
        os << "  recompute "
           << (isPart ? join(piece.getRecompute()->getAsValueRange<mlir::StringAttr>(), ", ") + " of " : "") << "stage("
           << number << ")\n";
      ++number;
    }
  }

  static std::string place(PlaceAttr place) {
    std::string rank = std::to_string(place.getRanks().front());
    return place.getLayout() == Layout::host ? "host(" + rank + ")" : rank;
  }

  /// Whether the transfer is between a rank and its host's memory.
  static bool isOffload(TransferOp op) {
    return op.getTo().getLayout() == Layout::host || (op.getFrom() && op.getFrom()->getLayout() == Layout::host);
  }

  static bool isAgain(Operation &op) {
    auto unit = dyn_cast<UnitOp>(op);
    return unit && unit.getUnit().getPhase() == Phase::R;
  }

  static std::string text(Operation *op) {
    if (auto unit = dyn_cast<UnitOp>(op))
      return unit.getUnit().str();
    if (auto transfer = dyn_cast<TransferOp>(op))
      return "move " + transfer.getThing().str() + " from " + place(*transfer.getFrom()) + " to " +
             place(transfer.getTo());
    std::string inside;
    for (Operation &member : op->getRegion(0).front())
      inside += " " + text(&member);
    return "together {" + inside + " }";
  }

  /// The rank of a unit, of units together, or of a move to host memory and back; -1 for messages.
  static int64_t rankOf(Operation *op) {
    if (auto together = dyn_cast<TogetherOp>(op))
      op = &together.getBody().front().front();
    if (auto transfer = dyn_cast<TransferOp>(op); transfer && isOffload(transfer))
      return transfer.getTo().getRanks().front();
    auto unit = dyn_cast<UnitOp>(op);
    return unit ? unit.getRanks().front() : -1;
  }

  static bool isAction(Operation &op) { return isa<UnitOp, TransferOp, TogetherOp>(op) && !isAgain(op); }

  void word(StringRef text, size_t indent) {
    if (column && column + 1 + text.size() > kColumns) {
      os << "\n";
      column = 0;
    }
    if (column == 0)
      os.indent(indent);
    else
      os << " ";
    os << text;
    column = (column ? column + 1 : indent) + text.size();
  }

  void writeList(int64_t rank, Block &body) {
    os << "  on " << rank << " {\n";
    column = 0;
    for (Operation &op : body)
      if (isAction(op) && rankOf(&op) == rank)
        word(text(&op), 4);
    os << "\n  }\n";
  }

  void writeOrder(Block &body) {
    os << "  # One order for all ranks: a unit stands in the list of its rank, a message in the lists of both its "
          "ends.\n";
    std::string units;
    int64_t rank = -1;
    auto flush = [&] {
      if (!units.empty())
        word("on " + std::to_string(rank) + " {" + units + " }", 2);
      units.clear();
    };
    for (Operation &op : body) {
      if (!isAction(op))
        continue;
      if (rankOf(&op) != rank)
        flush();
      rank = rankOf(&op);
      if (rank < 0)
        word(text(&op), 2);
      else
        units += " " + text(&op);
    }
    flush();
    os << "\n";
  }
};

} // namespace

void pp::writePipe(ProgramOp program, StringRef name, StringRef origin, raw_ostream &os) {
  PipeWriter(program, name, os).write(origin);
}
