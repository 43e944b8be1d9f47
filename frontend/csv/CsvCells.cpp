// The cells of a schedule CSV: PyTorch's grammar to the letter, and the names of its older dialects where they appear.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//   row    = cell { "," cell }            rank k is row k; blanks around a cell are nothing, an empty cell is idle time
//   cell   = simple | "(" simple { ";" simple } ")OVERLAP_F_B"
//   simple = STAGE ( F | I | B | W | SEND_F | RECV_F | SEND_B | RECV_B | WAIT_SEND_F | WAIT_SEND_B ) MICROBATCH
//          | STAGE ( UNSHARD | RESHARD | REDUCE_GRAD | WAIT_REDUCE_GRAD )
//
// PyTorch's own reader does not anchor its pattern: it takes `2F0xyz` for 2F0 and `0F` for a forward of no microbatch.
#include "frontend/csv/Csv.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSwitch.h"

using namespace llvm;
using namespace pp;

namespace {

constexpr int64_t kLargest = 1'000'000; // of a stage or microbatch: beyond it a number is a slip, not a schedule

class CellReader {
public:
  CellReader(Source &source, CsvDialect dialect) : source(source), dialect(dialect) {}

  FailureOr<CsvTable> read() {
    StringRef rest = source.text(source.manager.getMainFileID());
    table.at = at(rest);
    while (!rest.empty()) {
      auto [line, after] = rest.split('\n');
      rest = after;
      line.consume_back("\r");
      if (!line.starts_with("#") && failed(readRow(line)))
        return failure();
    }
    return std::move(table);
  }

private:
  Source &source;
  CsvDialect dialect;
  CsvTable table;
  int64_t joints = 0;

  static SMLoc at(StringRef text) { return SMLoc::getFromPointer(text.data()); }

  LogicalResult readRow(StringRef line) {
    CsvRow &row = table.rows.emplace_back();
    row.at = at(line);
    for (bool more = true; more;) {
      size_t comma = line.find(',');
      more = comma != StringRef::npos;
      StringRef cell = line.substr(0, comma);
      StringRef text = cell.trim(" \t");
      if (text.empty())
        row.blank = row.blank.isValid() ? row.blank : at(cell);
      else if (failed(text.starts_with("(") ? readOverlap(text, row) : readSimple(text, row, -1)))
        return failure();
      line = more ? line.substr(comma + 1) : "";
    }
    return success();
  }

  LogicalResult readOverlap(StringRef text, CsvRow &row) {
    size_t close = text.find(')');
    if (close == StringRef::npos)
      return source.error(at(text)) << "`" << text << "` has no `)`";
    if (text.substr(close + 1) != "OVERLAP_F_B")
      return source.error(at(text.substr(close + 1)))
             << "expected `OVERLAP_F_B` after `)`, got `" << text.substr(close + 1) << "`";
    size_t first = row.actions.size();
    StringRef inside = text.slice(1, close);
    for (bool more = true; more;) {
      size_t end = inside.find(';');
      more = end != StringRef::npos;
      StringRef member = inside.substr(0, end).trim(" \t");
      if (failed(readSimple(member, row, joints)))
        return failure();
      if (!row.actions.back().isUnit())
        return source.error(at(member)) << "`" << member << "` cannot overlap; a cell of OVERLAP_F_B holds units";
      inside = more ? inside.substr(end + 1) : "";
    }
    if (row.actions.size() - first < 2)
      return source.error(at(text)) << "`" << text << "` holds one unit; OVERLAP_F_B needs two";
    ++joints;
    return success();
  }

  FailureOr<int64_t> readNumber(StringRef &text) {
    StringRef digits = text.take_while(isDigit);
    int64_t number;
    if (digits.getAsInteger(10, number) || number > kLargest)
      return source.error(at(text)) << "`" << digits << "` is too large; the limit is " << kLargest;
    text = text.drop_front(digits.size());
    return number;
  }

  std::optional<CsvAction::Kind> kindOf(StringRef word) {
    if (dialect == CsvDialect::V25 && word == "B")
      return CsvAction::I;
    if (dialect == CsvDialect::V25 && word == "BW")
      return CsvAction::B;
    return StringSwitch<std::optional<CsvAction::Kind>>(word)
        .Case("F", CsvAction::F)
        .Case("I", CsvAction::I)
        .Case("B", CsvAction::B)
        .Case("W", CsvAction::W)
        .Case("SEND_F", CsvAction::SendF)
        .Case("RECV_F", CsvAction::RecvF)
        .Case("SEND_B", CsvAction::SendB)
        .Case("RECV_B", CsvAction::RecvB)
        .Case("WAIT_SEND_F", CsvAction::WaitSendF)
        .Case("WAIT_SEND_B", CsvAction::WaitSendB)
        .Case("UNSHARD", CsvAction::Unshard)
        .Case("RESHARD", CsvAction::Reshard)
        .Case("REDUCE_GRAD", CsvAction::ReduceGrad)
        .Case("WAIT_REDUCE_GRAD", CsvAction::WaitReduceGrad)
        .Default(std::nullopt);
  }

  FailureOr<CsvAction::Kind> readKind(StringRef &text, StringRef whole) {
    StringRef word = text.take_while([](char c) { return isUpper(c) || c == '_'; });
    std::optional<CsvAction::Kind> kind = kindOf(word);
    if (kind && word == "I" && dialect == CsvDialect::V25)
      return source.error(at(text)) << "`" << whole << "`: PyTorch 2.5 has no `I`; there `B` is the gradient of the "
                                    << "input, so this is no file of that dialect";
    if (word == "BW" && !kind)
      return source.error(at(text)) << "`BW` is the full backward of PyTorch 2.5, where `B` is what is `I` today; read "
                                    << "this file with `--dialect=2.5`";
    static const StringRef words[] = {
        "F",      "I",       "B",       "W",           "SEND_F",      "RECV_F",      "SEND_B",
        "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD"};
    if (!kind)
      return source.error(at(text)) << "expected an action such as `F` or `SEND_F` after the stage, got `"
                                    << (word.empty() ? text : word) << "`" << didYouMean(word, words);
    text = text.drop_front(word.size());
    return *kind;
  }

  LogicalResult readSimple(StringRef text, CsvRow &row, int64_t joint) {
    StringRef rest = text;
    if (text.empty() || !isDigit(text.front())) {
      bool old = !text.empty() && StringRef("FBW").contains(text.front()) && text.contains("_s");
      return source.error(at(text))
             << "expected a stage, an action and a microbatch such as `0F0`, got `" << text << "`"
             << (old ? "; this is how PyTorch 2.4 and older wrote the microbatch before the stage" : "");
    }
    FailureOr<int64_t> stage = readNumber(rest), microbatch = -1;
    if (failed(stage))
      return failure();
    FailureOr<CsvAction::Kind> kind = readKind(rest, text);
    if (failed(kind))
      return failure();
    bool wholeStage = *kind >= CsvAction::Unshard, given = !rest.empty() && isDigit(rest.front());
    if (given && wholeStage)
      return source.error(at(rest)) << "`" << text << "` concerns the whole stage, so it has no microbatch";
    if (!given && !wholeStage)
      return source.error(at(rest)) << "`" << text << "` lacks its microbatch";
    if (given && failed(microbatch = readNumber(rest)))
      return failure();
    if (!rest.empty())
      return source.error(at(rest)) << "expected the end of the cell after `" << text.drop_back(rest.size())
                                    << "`, got `" << rest << "`";
    CsvAction action{*kind, *stage, *microbatch, text, at(text), joint};
    table.hasMessages |= action.isMessage() || action.isWait();
    row.actions.push_back(action);
    return success();
  }
};

} // namespace

FailureOr<CsvTable> pp::readCells(Source &source, CsvDialect dialect) { return CellReader(source, dialect).read(); }
