// Clusters: what their options are called, which of them must be there, and whether a program fits.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "frontend/Cluster.h"

using namespace llvm;
using namespace pp;

namespace {
/// A number that a cluster may give: alone (`memory 80e9`, no label) or by its label (`inside bandwidth = 200e9`). What
/// is of a device may be a list.
struct Figure {
  StringRef option, label;
  enum Kind { Count, Bytes, Speed, Time, Share } kind;
  bool required; ///< where its option is given, and the option itself if it is a number alone
  std::vector<double> values = {};
  const Expr *list = nullptr; ///< that the values are from
  bool isGiven = false;       ///< rightly or not

  bool isOfDevice() const { return (kind != Count || option == "device") && option != "inside" && option != "between"; }
};

class Reader {
public:
  Reader(Evaluator &evaluator, const Cluster &cluster, Scope &scope, mlir::MLIRContext *context)
      : evaluator(evaluator), cluster(cluster), scope(scope), builder(context) {}

  FailureOr<ClusterOutline> run() {
    bool isRead = !cluster.isWrong;
    for (const Option &option : cluster.options)
      isRead &= succeeded(checkName(option)) && succeeded(read(option));
    // Where a name is wrong, it may be the one that is missing.
    isRead &= cluster.isWrong || isMisnamed || succeeded(checkAllGiven());
    return !isRead || failed(checkLengths()) ? FailureOr<ClusterOutline>(failure()) : outline();
  }

private:
  const Option *find(StringRef name) {
    auto found = find_if(cluster.options, [&](const Option &option) { return option.name.text == name; });
    return found == cluster.options.end() ? nullptr : found;
  }

  /// What is missing is told where its option stands, else at the cluster's name.
  LogicalResult checkAllGiven() {
    bool isRight = true;
    std::string ofCluster;
    for (const Figure &figure : figures) {
      const Option *option = find(figure.option);
      bool isExpected = figure.label.empty() || figure.option == "device" || option;
      if (!figure.required || !isExpected || figure.isGiven)
        continue;
      isRight = false;
      std::string missing =
          figure.label.empty()
              ? ("`" + figure.option + " " + (figure.kind == Figure::Bytes ? "<bytes of a rank>" : "<of a node>") + "`")
                    .str()
              : ("`" + figure.label + "` of `" + figure.option + "`").str();
      if (option)
        (void)evaluator.fail(option->name.at, "cluster `" + cluster.name.text + "` lacks " + missing);
      else
        ofCluster += (ofCluster.empty() ? "" : " and ") + missing;
    }
    return ofCluster.empty()
               ? success(isRight)
               : evaluator.fail(cluster.name.at, "cluster `" + cluster.name.text + "` lacks " + ofCluster);
  }

  LogicalResult checkName(const Option &option) {
    SmallVector<StringRef> names;
    for (const Figure &figure : figures)
      names.push_back(figure.option);
    isMisnamed |= !is_contained(names, option.name.text);
    if (!is_contained(names, option.name.text))
      return evaluator.fail(option.name.at,
                            "`cluster` has no option `" + option.name.text + "`" + didYouMean(option.name.text, names),
                            option.name.at, thereAre(names));
    if (const Option *first = find(option.name.text); first != &option)
      return evaluator.fail(option.name.at, "option `" + option.name.text + "` is given twice", first->name.at,
                            "first given here");
    return success();
  }

  LogicalResult read(const Option &option) {
    StringRef name = option.name.text;
    bool alone = find_if(figures, [&](Figure &figure) { return figure.option == name; })->label.empty();
    if (alone && option.value)
      return set(name, "", option.value);
    if (alone || option.labels.empty()) {
      for (Figure &figure : figures)
        figure.isGiven |= figure.option == name;
      return evaluator.fail(option.name.at, "expected `" + name + (alone ? " <number>`" : " name = <number>, ..`"));
    }
    bool isRead = true;
    for (auto [label, value] : zip(option.labels, option.values)) {
      SmallVector<StringRef> labels;
      for (const Figure &figure : figures)
        if (figure.option == name)
          labels.push_back(figure.label);
      isMisnamed |= !is_contained(labels, label.text);
      if (is_contained(labels, label.text))
        isRead &= succeeded(set(name, label.text, value));
      else
        isRead = succeeded(evaluator.fail(
            label.at, "`" + name + "` has no option `" + label.text + "`" + didYouMean(label.text, labels), label.at,
            thereAre(labels)));
    }
    return success(isRead);
  }

  LogicalResult set(StringRef option, StringRef label, const Expr *expr) {
    Figure &figure = *find_if(figures, [&](Figure &one) { return one.option == option && one.label == label; });
    FailureOr<Value> value = evaluator.evaluate(expr, scope);
    if (failed(value))
      return figure.isGiven = true, failure();
    if (std::exchange(figure.isGiven, true))
      return evaluator.fail(expr->at, "`" + (label.empty() ? option : label) + "` is given twice");
    const Value::List *list = figure.isOfDevice() ? value->asList() : nullptr;
    if (!list || list->empty())
      return add(figure, *value, expr->at);
    figure.list = expr;
    bool isLiteral = expr->kind == Expr::List;
    for (auto [i, item] : llvm::enumerate(*list))
      if (failed(add(figure, item, isLiteral ? expr->operands[i]->at : expr->at)))
        return failure();
    return success();
  }

  LogicalResult add(Figure &figure, const Value &value, SMLoc at) {
    double number = value.asInt() ? *value.asInt() : value.asNumber() ? *value.asNumber() : -1;
    static constexpr const char *expected[] = {"an int from 1 to 2147483647", "a number of bytes of at least 1",
                                               "a number above 0", "a number of seconds of at least 0",
                                               "a share above 0, up to 1"};
    auto isRight = [&] {
      switch (figure.kind) {
      case Figure::Count:
        return value.asInt() && number >= 1 && number <= INT32_MAX;
      case Figure::Bytes:
        return number >= 1 && number < 9e18;
      case Figure::Time:
        return number >= 0;
      case Figure::Share:
        return number > 0 && number <= 1;
      default:
        return number > 0;
      }
    };
    if (!isRight())
      return evaluator.fail(at, Twine("expected ") + expected[figure.kind] + " for `" +
                                    (figure.label.empty() ? figure.option : figure.label) + "`, got " + value.text());
    figure.values.push_back(number);
    return success();
  }

  /// A list has a number for each device of a node, or for those of all nodes: then it also says how many there are.
  LogicalResult checkLengths() {
    auto ranks = static_cast<size_t>(valueOf("ranks")), nodes = static_cast<size_t>(valueOf("nodes"));
    for (const Figure &figure : figures) {
      size_t length = figure.values.size();
      if (!figure.list || length == ranks)
        continue;
      std::string all = nodes > 0 ? std::to_string(nodes * ranks) : "a multiple of that";
      if (length % ranks != 0 || (nodes > 0 && length != nodes * ranks))
        return evaluator.fail(figure.list->at,
                              "`" + (figure.label.empty() ? figure.option : figure.label) + "` has " + Twine(length) +
                                  (length == 1 ? " number" : " numbers") + "; expected " + Twine(ranks) +
                                  ", one for each device of a node, or " + all + ", for the devices of all nodes");
      nodes = length / ranks;
    }
    if (nodes > 0)
      find_if(figures, [](Figure &one) { return one.option == "nodes"; })->values = {static_cast<double>(nodes)};
    return success();
  }

  double valueOf(StringRef option) {
    const Figure &figure = *find_if(figures, [&](Figure &one) { return one.option == option; });
    return figure.values.empty() ? 0 : figure.values.front();
  }

  mlir::Attribute attributeOf(const Figure &figure) {
    if (figure.kind != Figure::Bytes)
      return figure.list ? mlir::Attribute(builder.getDenseF64ArrayAttr(figure.values))
                         : builder.getF64FloatAttr(figure.values.front());
    SmallVector<int64_t> bytes(figure.values.begin(), figure.values.end());
    return figure.list ? mlir::Attribute(builder.getDenseI64ArrayAttr(bytes)) : builder.getI64IntegerAttr(bytes[0]);
  }

  ClusterOutline outline() {
    SmallVector<mlir::NamedAttribute> entries = {
        builder.getNamedAttr("name", builder.getStringAttr(cluster.name.text)),
        builder.getNamedAttr("ranks_per_node", builder.getI64IntegerAttr(valueOf("ranks")))};
    for (const Figure &figure : figures)
      if (figure.kind == Figure::Bytes)
        entries.push_back(builder.getNamedAttr(figure.option, attributeOf(figure)));
    for (StringRef option : {"device", "efficiency", "inside", "between", "host"}) {
      SmallVector<mlir::NamedAttribute> inner;
      for (const Figure &figure : figures)
        if (figure.option == option && !figure.values.empty())
          inner.push_back(builder.getNamedAttr(figure.label, attributeOf(figure)));
      if (!inner.empty())
        entries.push_back(builder.getNamedAttr(option, builder.getDictionaryAttr(inner)));
    }
    return {cluster.name, static_cast<int64_t>(valueOf("ranks")), static_cast<int64_t>(valueOf("nodes")),
            builder.getDictionaryAttr(entries)};
  }

  Evaluator &evaluator;
  const Cluster &cluster;
  Scope &scope;
  mlir::Builder builder;
  bool isMisnamed = false;
  Figure figures[22] = {{"nodes", "", Figure::Count, false},
                        {"ranks", "", Figure::Count, true},
                        {"memory", "", Figure::Bytes, true},
                        {"device", "f32", Figure::Speed, false},
                        {"device", "bf16", Figure::Speed, false},
                        {"device", "f16", Figure::Speed, false},
                        {"device", "f64", Figure::Speed, false},
                        {"device", "bandwidth", Figure::Speed, true},
                        {"device", "launch", Figure::Time, false},
                        {"device", "multiprocessors", Figure::Count, false},
                        {"efficiency", "gemm", Figure::Share, false},
                        {"efficiency", "attention", Figure::Share, false},
                        {"efficiency", "masked", Figure::Share, false},
                        {"efficiency", "grouped", Figure::Share, false},
                        {"efficiency", "bandwidth", Figure::Share, false},
                        {"inside", "bandwidth", Figure::Speed, true},
                        {"inside", "latency", Figure::Time, false},
                        {"between", "bandwidth", Figure::Speed, true},
                        {"between", "latency", Figure::Time, false},
                        {"between", "nics", Figure::Count, false},
                        {"host", "bandwidth", Figure::Speed, true},
                        {"host", "latency", Figure::Time, false}};
};
} // namespace

FailureOr<ClusterOutline> pp::outlineCluster(Evaluator &evaluator, const Cluster &cluster, Scope &scope,
                                             mlir::MLIRContext *context) {
  return Reader(evaluator, cluster, scope, context).run();
}

LogicalResult pp::checkRoom(Evaluator &evaluator, const ClusterOutline &cluster, int64_t ranks, int64_t devicesOfRank,
                            StringRef precision, SMLoc at) {
  StringRef whose = devicesOfRank == 1 ? "the schedule" : "the program",
            what = devicesOfRank == 1 ? "ranks" : "devices";
  ranks *= devicesOfRank;
  std::string name = ("cluster `" + cluster.name.text + "`").str(), note = "it is described here";
  if (cluster.nodes && ranks > cluster.nodes * cluster.ranksPerNode)
    return evaluator.fail(at,
                          whose + " has " + Twine(ranks) + " " + what + "; " + name + " has " +
                              Twine(cluster.nodes * cluster.ranksPerNode) + ", " + Twine(cluster.ranksPerNode) +
                              " on each of " + Twine(cluster.nodes) + (cluster.nodes == 1 ? " node" : " nodes"),
                          cluster.name.at, note);
  if (!cluster.attribute.getAs<mlir::DictionaryAttr>("device").get(precision))
    return evaluator.fail(at, name + " does not say how fast its devices are in " + precision, cluster.name.at, note);
  bool crosses = ranks > cluster.ranksPerNode, meets = ranks > 1 && cluster.ranksPerNode > 1;
  if (crosses && !cluster.attribute.get("between"))
    return evaluator.fail(
        at, Twine(ranks) + " " + what + " take more than one node of " + name + ", which has no `between`",
        cluster.name.at, note);
  if (meets && !cluster.attribute.get("inside"))
    return evaluator.fail(at, name + " has several " + what + " on a node and no `inside`", cluster.name.at, note);
  return success();
}

LogicalResult pp::noNodes(Evaluator &evaluator, SMLoc at) {
  return evaluator.fail(at, "`nodes`: with this `mesh` and cluster the devices of a rank neither share a node nor fill "
                            "nodes; their number has to divide that of a node, or be a multiple of it, and `order` "
                            "ends with `pipeline`");
}

Value pp::nodesOf(int64_t ranks, int64_t ranksPerNode) {
  Value::List nodes;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    if (nodes.empty() || (ranksPerNode && rank % ranksPerNode == 0))
      nodes.push_back(Value(Value::List()));
    nodes.back().ownItems().push_back(Value(rank));
  }
  return Value(std::move(nodes));
}
