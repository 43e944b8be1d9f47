// The table of options and of what reads them.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "tools/Effects.h"
#include "tools/Forms.h"
#include "tools/FrontendFlags.h"

using namespace pp;
using llvm::StringRef;
namespace cl = llvm::cl;

namespace {

/// The command line with what follows from it.
struct Asked : Effects {
  Form form = requestedForm();
  bool compares = isGiven("compare");

  explicit Asked(const Effects &effects) : Effects(effects) {}

  static bool isGiven(StringRef name) {
    cl::Option *option = cl::getRegisteredOptions().lookup(name); // null: this tool does not have it
    return option && option->getNumOccurrences() > 0;
  }
  bool is(std::initializer_list<Form> forms) const { return writesForm() && llvm::is_contained(forms, form); }
  bool writesForm() const { return !proves && !checks; }
  bool plans() const { return isGiven("plan") || isGiven("search"); }
  /// A form is made of the step, not only of what the schedule emitted.
  bool isBeyondActions() const { return !writesForm() || form != Form::Actions; }
  bool isOfRanks() const { return isBeyondActions() && (!writesForm() || form != Form::Pipeline); }
  bool writesExecutable() const { return is({Form::Exe}) && !compares; }
  bool simulates() const {
    return writesForm() &&
           (compares || is({Form::Svg, Form::Report, Form::Trace, Form::Chakra, Form::Stats, Form::Json}));
  }
  /// Tasks with their bytes and their time, or their code; not their names alone.
  bool readsBodies() const { return isOfRanks() && !is({Form::Tasks, Form::Comms, Form::Torch, Form::Timeline}); }
  /// Costs of parts decide in which order messages are posted.
  bool ordersMessages() const { return isBeyondActions() && !hasRanks; }
};

struct Row {
  StringRef option, readers;
  bool (*isRead)(const Asked &);
};

} // namespace

static const Row kRows[] = {
    {"D", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"schedule", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"cluster", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"stdlib", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"max-steps", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"max-actions", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"max-megabytes", "a `.pipe` file", [](const Asked &asked) { return asked.isPipe; }},
    {"fuse", "forms that are made from a schedule, after --emit=actions, but for torch",
     [](const Asked &asked) { return asked.ordersMessages() && !asked.is({Form::Torch}); }},
    {"interleave", "forms that are made from a schedule, after --emit=actions",
     [](const Asked &asked) { return asked.ordersMessages(); }},
    {"hoist", "forms that are made from a schedule, after --emit=actions",
     [](const Asked &asked) { return asked.ordersMessages(); }},
    {"order", "forms that are made from a schedule, after --emit=actions",
     [](const Asked &asked) { return asked.ordersMessages(); }},
    {"forward", "forms that are made from a schedule, after --emit=actions, and --prove",
     [](const Asked &asked) { return asked.ordersMessages() && !asked.compares && !asked.checks; }},
    {"plan", "what is made from a schedule", [](const Asked &asked) { return !asked.hasRanks; }},
    {"search", "what is made from a schedule, but for --check",
     [](const Asked &asked) { return !asked.hasRanks && asked.isPipe && !asked.checks; }},
    {"search-seconds", "--search", [](const Asked &) { return Asked::isGiven("search"); }},
    {"epilogues", "forms with code, bytes or times that are made from a schedule",
     [](const Asked &asked) { return asked.readsBodies() && !asked.hasRanks; }},
    {"target", "forms with code, bytes or times", [](const Asked &asked) { return asked.readsBodies(); }},
    {"costs",
     "--emit=svg, report, trace, chakra, stats and json, --compare, --hoist, --plan and --search; costs of parts by "
     "every "
     "form "
     "after actions",
     [](const Asked &asked) {
       bool ofParts = StringRef(requestedCosts()).contains('=') && !Asked::isGiven("order");
       return asked.simulates() || asked.plans() || (asked.ordersMessages() && (ofParts || Asked::isGiven("hoist")));
     }},
    {"overlap", "--emit=svg, report, trace, chakra, stats and json, --compare, --plan and --search",
     [](const Asked &asked) { return asked.simulates() || asked.plans(); }},
    {"expert-load", "--emit=svg, report, trace, chakra, stats and json, and --compare",
     [](const Asked &asked) { return asked.simulates(); }},
    {"lockstep", "--emit=svg, report, trace, chakra, stats and json, --compare, --plan and --search",
     [](const Asked &asked) { return asked.simulates() || asked.plans(); }},
    {"compare", "--emit=report, which draws it under the plan, and prints a table without --emit and --prove",
     [](const Asked &asked) { return asked.is({Form::Report}) || (!isFormRequested() && asked.writesForm()); }},
    {"to-scale", "--emit=timeline", [](const Asked &asked) { return asked.is({Form::Timeline}); }},
    {"columns", "--emit=timeline", [](const Asked &asked) { return asked.is({Form::Timeline}); }},
    {"messages", "--emit=svg and torch", [](const Asked &asked) { return asked.is({Form::Svg, Form::Torch}); }},
    {"waits", "--emit=torch --messages",
     [](const Asked &asked) { return asked.is({Form::Torch}) && Asked::isGiven("messages"); }},
    {"memory", "--emit=svg", [](const Asked &asked) { return asked.is({Form::Svg}); }},
    {"rank", "--emit=obj and llvm", [](const Asked &asked) { return asked.is({Form::Obj, Form::Llvm}); }},
    {"runtime", "what links an executable",
     [](const Asked &asked) { return asked.writesExecutable() || asked.checks; }},
    {"also", "executables that are made from a `.pipe` file",
     [](const Asked &asked) { return asked.writesExecutable() && asked.isPipe; }},
    {"o", "what writes a form of one file; --prove prints",
     [](const Asked &asked) { return asked.writesForm() && !asked.isSplit; }},
    {"channels", "forms of rank programs, which are proved, and --prove",
     [](const Asked &asked) { return asked.isOfRanks(); }},
    {"memory-limit", "forms of rank programs, which are proved, --hoist, --plan, --search and --prove",
     [](const Asked &asked) {
       return asked.isOfRanks() || asked.plans() || (asked.ordersMessages() && Asked::isGiven("hoist"));
     }},
    {"prove", "forms of rank programs", [](const Asked &asked) { return asked.isOfRanks(); }},
    {"dialect", "--import-csv", [](const Asked &) { return false; }},
    {"name", "--import-csv", [](const Asked &) { return false; }}};

bool pp::isOptionRead(StringRef option, const Effects &effects) {
  Asked asked(effects);
  return llvm::any_of(kRows, [&](const Row &row) { return row.option == option && row.isRead(asked); });
}

llvm::LogicalResult pp::checkEffects(const Effects &effects) {
  Asked asked(effects);
  for (const Row &row : kRows)
    if (Asked::isGiven(row.option) && !row.isRead(asked))
      return usage("`" + llvm::Twine(row.option.size() > 1 ? "--" : "-") + row.option +
                   "` has no effect here; it is for " + row.readers);
  return llvm::success();
}
